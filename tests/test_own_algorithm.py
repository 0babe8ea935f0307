"""The example of an algorithm in one file trains, stops and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import zmqrl
from tests.support.running import RUN_S

pytestmark = pytest.mark.whole
EXAMPLES = Path(__file__).parent.parent / "examples"


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zmqrl", "train", *arguments, "--plain"]
    return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=RUN_S, check=False)


@pytest.mark.long
def test_own_algorithm_trains_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is continued from Python, in a process that has torch."""
    run = tmp_path / "run"
    settings = ("--set", "evaluator.episodes=0", "--set", "run.total_env_steps=2000")
    first = train("own_algorithm.yaml", *settings, "--workers", "1", "--run-dir", str(run))
    assert first.returncode == 0, first.stderr
    monkeypatch.syspath_prepend(EXAMPLES)
    assert zmqrl.resume(run, run__total_env_steps=4000).status == "done"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["env_steps"] >= 4000
    assert summary["updates"] >= 4000 // 2048, "one update a round, over both attempts"
    assert summary["ledger"]["balanced"]
