"""`run_of_0_1` was written by zmqrl 0.1 (commit 9f70a05): CartPole PPO in mode single, 8 hidden units."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

from tests.support.runs.command_runs import resume, summary

MADE = Path(__file__).with_name("run_of_0_1")


def test_a_full_of_0_1_is_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(MADE, run_dir)
    run = json.loads((MADE / "run.json").read_text())
    assert "lineage" not in run, "of 0.1"
    (run_dir / "run.json").write_text(json.dumps({**run, "host": socket.gethostname()}))  # else it may live elsewhere
    resume(run_dir, 600)
    done = summary(run_dir)
    assert done["resumed_from"] == {"version": "0-5", "env_steps": 304, "written_at": None}
    assert done["env_steps"] >= 600 and done["ledger"]["balanced"]
    assert done["updates"] > 100, "counters go on"
