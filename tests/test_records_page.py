"""docs/records.md: the systemd unit is valid and accepted. docs/metrics.md and runs.md: every name, and no other."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from generate.run_schemas import WORKER, MetricsRow
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import names_of
from zmqrl.summary import Summary

PAGE = Path(__file__).parents[1] / "docs" / "records.md"
METRICS = PAGE.with_name("metrics.md")
PACKAGE = PAGE.parents[1] / "zmqrl"
WORKER_NAMES = re.findall(r"[a-z]+(?:_[a-z]+)+", WORKER.partition("_(")[2])


def unit() -> str:
    found = re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit()).replace("%h/lab", str(tmp_path))
    file = tmp_path / "zmqrl.service"
    file.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "zmqrl.service" in line] == []


def test_its_command_is_accepted(tmp_path: Path) -> None:
    command = re.search(r"ExecStart=\S+ (.*)", unit())
    assert command is not None
    arguments = [sys.executable, "-m", "zmqrl", *shlex.split(command[1]), "--dry-run"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run directory" in done.stdout


def names(text: str) -> set[str]:
    return set(re.findall(r"`([\w/<>]+)`", text))


def glossary() -> set[str]:
    """The names in the first columns of docs/metrics.md."""
    cells = re.findall(r"^\| (`.*?) \|", METRICS.read_text(), re.MULTILINE)
    return names(" ".join(cells))


def in_glossary(name: str) -> str:
    return re.sub(r"^grad_norm/\w+$", "grad_norm/<group>", name)


def dictionary_keys(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def reported_by(source: str) -> set[str]:
    """Constant names that an algorithm reports: next to a loss, by `add_metrics`, and of its schedule."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        reports = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_metrics"
        reports |= isinstance(node, ast.FunctionDef) and node.name in ("schedule", "metrics", "_measure", "train")
        keys = set(dictionary_keys(node)) if reports or isinstance(node, ast.Dict) else set()
        found |= keys if reports or any(key.startswith("loss/") for key in keys) else set()
    return found


def test_the_glossary_has_every_metric_and_no_other() -> None:
    fields = set(names_of(MetricsRow))
    folders = (PACKAGE / "algorithms", PACKAGE / "learning")
    of_algorithms = {name for f in folders for path in f.rglob("*.py") for name in reported_by(path.read_text())}
    dynamic = {f"worker_<index>_{name}" for name in WORKER_NAMES} | {"report/<name>", "eval_report/<name>"}
    assert set(map(in_glossary, of_algorithms)) <= glossary()
    section = METRICS.read_text().partition("\n## Names of the algorithms\n")
    assert names(" ".join(re.findall(r"^\| (`.*?) \|", section[0], re.MULTILINE))) == fields | dynamic
    assert len(of_algorithms) > 15


def test_the_pages_of_algorithms_name_metrics_of_the_glossary() -> None:
    for page in (METRICS.parent / "algorithms").glob("*.md"):
        section = page.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
        named = {name for name in names(section) if "/" in name or name.endswith(("_mean", "_error", "_kl"))}
        assert set(map(in_glossary, named)) <= glossary(), page


def test_the_table_of_the_summary_has_every_field() -> None:
    page = (METRICS.parent / "runs.md").read_text().partition("`summary.json` has these fields:")[2]
    listed = names(" ".join(re.findall(r"^\| (`.*?) \|", page.partition("\n\n`env_steps`")[0], re.MULTILINE)))
    assert listed == set(names_of(Summary))
