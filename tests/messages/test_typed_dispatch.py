"""No message is read by string keys, and nothing is dispatched by a name put together: what the types replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import zmqrl
from generate.messages import TABLES
from zmqrl.messages.process import LearnerEnded, WorkerRates

PACKAGE = Path(zmqrl.__file__).parent
BEFORE_THE_INSTALLATION = ("remote_install.py", "install.py")
"""`zmqrl setup`: its far end runs where no package is installed yet."""
FILES = [
    path
    for path in PACKAGE.rglob("*.py")
    if path.parent.name != "messages" and path.name not in BEFORE_THE_INSTALLATION
]
ENDS = {
    "agent", "broker", "doctor", "evaluator", "launch", "launcher_place", "learner", "logs", "bus_ends",
    "orchestrators", "rollout", "run_files", "ssh", "wire", "zmqrl",
}  # fmt: skip
"""Packages that send and receive."""
TAGS = {"event", "command", "word", "order"}
FIGURES = {field for kind in (LearnerEnded, WorkerRates) for field in kind.__struct_fields__}
"""Names that `metrics`, status and summary have as well, which are JSON."""
FIELDS = {field for kinds in TABLES.values() for kind in kinds.values() for field in kind.__struct_fields__} - FIGURES
SHOWN = {"doctor/report.py"}
"""Tables of findings."""
NO_MESSAGES = {
    "launch/connection_file.py": {"format"},  # of a file of any version
    "launch/host_changes.py": {"host", "hosts", "state", "workers"},  # of status.json
    "launch/run/host_events.py": {"leases"},  # figures by name
    "launcher_place/launcher_host.py": {"code", "preset", "run_dir", "run_id"},  # of config.json and `status --json`
    "run_files/records.py": {"run_id"},  # of summary.json
    "run_files/run_list.py": {"error", "run_id"},  # of summary.json and status.json
    "run_files/url_mirror.py": {"path", "store"},  # of config.json
    "orchestrators/pods/kubectl.py": {"name", "state"},  # of a pod in the JSON of kubectl
    "orchestrators/login_session.py": {"user"},  # of a line of a shell
    "ssh/config.py": {"host", "user"},  # of a pattern and of ssh's own configuration
    "ssh/tokens.py": {"user"},  # of ssh's own configuration
    "wire/gate.py": {"event"},  # of libzmq's monitor
    "learner/env_slot_record.py": {"state"},  # an array by name
    "learner/process.py": {"written_at"},  # of a checkpoint
}
"""Keys that name something else there."""
FORBIDDEN = (r"event\.data\b", r'getattr\(self, f"_on_', r"\.fields\[", r"from_json\(Notice")


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_message_is_untyped(pattern: str) -> None:
    found = [path.name for path in FILES if re.search(pattern, path.read_text())]
    assert found == []


def _keys_read(tree: ast.AST) -> Iterator[str]:
    """Constant keys that something is read by: `d["role"]`, `d.get("role")`, `d.pop("role")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            key: ast.AST = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            key = node.args[0] if node.func.attr in ("get", "pop") else node.func
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def _built(tree: ast.AST) -> Iterator[int]:
    """Lines that build a message as a dict with a tag."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and node.keys:
            first = node.keys[0]
            if isinstance(first, ast.Constant) and first.value in TAGS:
                yield node.lineno


def test_no_message_is_read_by_string_keys() -> None:
    """Whatever the variable is called: keys that are fields of messages name nothing else than what is listed."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        package = ("zmqrl", *path.relative_to(PACKAGE).parts[:-1])[:2][-1]
        if package in ENDS and name not in SHOWN:
            keys = set(_keys_read(ast.parse(path.read_text()))) & (FIELDS | TAGS)
            found |= {name: keys} if keys else {}
    assert found == NO_MESSAGES


def test_no_message_is_built_by_string_keys() -> None:
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in FILES for line in _built(ast.parse(path.read_text()))]
    assert found == []


@pytest.mark.parametrize("code", ['event["role"]', 'd["role"]', 'd.get("role")', 'd.get("role", 0)', 'f(x)["role"]'])
def test_what_is_read_is_found(code: str) -> None:
    assert list(_keys_read(ast.parse(code))) == ["role"]


@pytest.mark.parametrize("code", ['{"event": "ready"}', 'send({"command": "stop", "now": 1})'])
def test_what_is_built_is_found(code: str) -> None:
    assert list(_built(ast.parse(code)))
