"""No message is read by string keys, and nothing is dispatched by a name put together: what the types replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import zmqrl

PACKAGE = Path(zmqrl.__file__).parent
BEFORE_THE_INSTALLATION = ("far_setup.py", "setup_hosts.py")
"""`zmqrl setup`: its far end runs where no package is installed yet."""
FILES = [
    path
    for path in PACKAGE.rglob("*.py")
    if path.parent.name != "messages" and path.name not in BEFORE_THE_INSTALLATION
]
TAGS = {"event", "command", "kind", "word", "order"}
MESSAGES = {"event", "message", "command", "word", "order", "f", "told", "said", "asked", "answer", "request", "line"}
"""Names that a message is held under."""
FORBIDDEN = (r"event\.data\b", r'getattr\(self, f"_on_', r"\.fields\[", r"from_json\(Notice")


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_message_is_untyped(pattern: str) -> None:
    found = [path.name for path in FILES if re.search(pattern, path.read_text())]
    assert found == []


def _string_keyed(tree: ast.AST) -> Iterator[int]:
    """Lines that read a message by a key, or build one as a dict with a tag."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in MESSAGES:
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                yield node.lineno
        elif isinstance(node, ast.Dict) and node.keys:
            first = node.keys[0]
            if isinstance(first, ast.Constant) and first.value in TAGS - {"kind"}:
                yield node.lineno


def test_no_message_is_read_or_built_by_string_keys() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}" for path in FILES for line in _string_keyed(ast.parse(path.read_text()))
    ]
    assert found == [f"doctor/probe.py:{_hello_line()}"], "only the probe's first line, which needs no package"


def _hello_line() -> int:
    lines = (PACKAGE / "doctor" / "probe.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if '{"word": name' in line)


@pytest.mark.parametrize("code", [
    'event["role"]', 'x = f["leases"]', '{"event": "ready"}', 'send({"command": "stop", "now": 1})',
])  # fmt: skip
def test_what_is_looked_for_is_found(code: str) -> None:
    assert list(_string_keyed(ast.parse(code)))
