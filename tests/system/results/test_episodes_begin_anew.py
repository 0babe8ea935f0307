"""`env.recovery: restart_episode` without a fault: the order in which processes start does not show in the weights."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.runs.references import References
from tests.support.runs.system_plans import TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection

Begin = Callable[[RunPlan], PlanRun]
ENV = EnvSection(
    id="tests.stand_ins.slow_envs:Endless",
    num_envs=2,
    vector_envs=4,
    segment_steps=32,
    recovery="restart_episode",
    kwargs={"step_s": 0.0},
)
WITHOUT_S = 2.0
"""Worker 0 is ready within this time."""


def test_the_weights_do_not_depend_on_who_is_ready_first(tmp_path: Path, begin: Begin, reference: References) -> None:
    """Worker 0 is ready while its agent and worker 1 are stopped: it may not begin what is for worker 1."""
    plan = system_plan(tmp_path / "run", "sync", 2, TALLY, ENV, steps=2000)
    run = begin(plan)
    run.wait_for(lambda: "worker-1" in run.processes())
    held = [run.processes()[name] for name in ("agent-0", "worker-1")]
    for process in held:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(WITHOUT_S)
    for process in held:
        os.kill(process.pid, signal.SIGCONT)
    summary = run.done()
    assert_same(summary, reference(plan))
    assert (summary["recovery"], summary["restarts"]) == ("restart_episode", 0)
