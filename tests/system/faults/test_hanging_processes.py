"""A worker or a learner that hangs is found, killed and replaced, and the run ends with the same bits.

In `bin/test` the worker that hangs is that of test_hanging_far_workers.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection

pytestmark = pytest.mark.timed
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0, lost_after_s=2.0, stalled_after_s=4.0)


@pytest.mark.parametrize(
    ("name", "limit"), [long("worker-1", "limits.lost_after_s (2 s)"), ("learner-0", "limits.stalled_after_s (4 s)")]
)
def test_a_process_that_is_stopped_for_ever(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], reference: References, name: str, limit: str
) -> None:
    run = begin(system_plan(tmp_path / "run", "sync", 2, SLOW_TALLY, steps=8000, limits=LIMITS))
    run.wait_for_updates(5)
    before = run.processes()[name]
    os.kill(before.pid, signal.SIGSTOP)
    run.wait_for_successor(name, before)
    code, out, err = run.end()
    assert code == 0, f"{out}\n{err}"
    summary = run.summary()
    assert f"local/{name}: hangs: no heartbeat for {limit}, killed" in out + err
    assert summary["restarts"] == 1
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["weights_sha256"] == reference(run.plan)["weights_sha256"]
