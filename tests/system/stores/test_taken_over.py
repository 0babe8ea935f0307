"""A run whose launcher was frozen while another host took its directory over writes no further checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import IDLE, system_plan
from tests.support.runs.system_runs import PlanRun, newest_n
from tests.support.waiting import WAIT_S
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection
from zmqrl.supervision.process_table import await_gone

Begin = Callable[[RunPlan], PlanRun]
ELSEWHERE = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
SLOW = EnvSection(
    id="tests.stand_ins.slow_envs:Slow", max_episode_steps=500, num_envs=2, vector_envs=4, segment_steps=32
)
TAKE_OVER = """
import sys
from pathlib import Path
from zmqrl.supervision.run_owner import RunOwner
RunOwner.acquire(Path(sys.argv[1]), "another")
"""


@pytest.mark.skipif(
    subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode != 0,
    reason="another host needs namespaces, and those root",
)
@pytest.mark.parametrize("frozen", [long("launcher"), "all"])
def test_a_frozen_run_that_was_taken_over(tmp_path: Path, begin: Begin, frozen: str) -> None:
    run = begin(system_plan(tmp_path / "run", "sync", 2, IDLE, SLOW, steps=1_000_000))
    run.wait_for_updates(5)
    processes = run.processes()
    victims = [run.process.pid, *(process.pid for process in processes.values() if frozen == "all")]
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)
    subprocess.run([*ELSEWHERE, sys.executable, "-c", TAKE_OVER, run.run_dir], check=True, timeout=WAIT_S)
    newest = newest_n(Path(run.plan.store_path), "full-")
    for pid in reversed(victims):
        os.kill(pid, signal.SIGCONT)
    code, _, err = run.end()
    assert code == 1
    assert "was taken over by run another (pid" in err
    assert "summary.json cannot be written" in err
    assert not (run.run_dir / "summary.json").exists()
    assert newest_n(Path(run.plan.store_path), "full-") <= newest + 1, "one may have been on its way"
    assert not await_gone(processes.values(), 0.0)
