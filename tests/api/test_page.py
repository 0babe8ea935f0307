"""The blocks of docs/python.md are one script: it runs, and its types are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import zmqrl
from tests.support.running import ROOT, RUN_S, environment

pytestmark = pytest.mark.whole
PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(?:# (?P<name>\w+\.py)\n)?(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT, SHORT_WAIT = "wait(timeout_s=5)", "wait(timeout_s=1.5)"
"""Of the page, and of this test: the run trains all the while."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, script = tmp_path_factory.mktemp("python"), ""
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["name"] is None:
            script += block["text"]
        else:
            (path / block["name"]).write_text(block["text"])
    (path / "study.py").write_text(script)
    return path


@pytest.mark.long
def test_the_script_runs(folder: Path) -> None:
    script = (folder / "study.py").read_text()
    assert script.count(WAIT) == 1
    (folder / "short.py").write_text(script.replace(WAIT, SHORT_WAIT))
    done = subprocess.run(
        [sys.executable, "short.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nrun cartpole-ppo-" in f"\n{done.stdout}" and "\nstopped\n" in done.stdout
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["first", "second", "walk"]


def test_its_types_are_right_and_a_wrong_use_is_found(folder: Path) -> None:
    """With the options of the package, so that the cache of its check is used; they are strict."""
    (folder / "wrong.py").write_text(
        "import zmqrl\n"
        'summary: zmqrl.Summary = zmqrl.train("cartpole-ppo", seed="3")\n'
        "steps: str = summary.env_steps\n"
        "zmqrl.start().wait(timeout=3)\n"
        'zmqrl.train("cartpole-ppo", on_score=lambda score: score.mean)\n'
        "version: int = zmqrl.__version__\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(folder / "study.py"), str(folder / "wrong.py")],
        cwd=ROOT,
        env={**environment(), "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [re.search(r"(\w+\.py):(\d+)", line)[0] for line in found] == [  # type: ignore[index]
        f"wrong.py:{line}" for line in (2, 3, 4, 5, 6)
    ], done.stdout + done.stderr


def test_the_page_names_what_is_exported() -> None:
    text = PAGE.read_text()
    assert [name for name in zmqrl.__all__ if getattr(zmqrl, name) is None] == []
    assert [name for name in zmqrl.__all__ if not re.search(rf"\b{name}\b", text)] == []
