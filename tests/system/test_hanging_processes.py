"""A worker or a learner that hangs is found, killed and replaced, and the run ends with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.references import References
from tests.system.system_plans import SLOW_TALLY, system_plan
from tests.system.system_runs import PlanRun
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection

pytestmark = pytest.mark.timed
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0, lost_after_s=2.0)


def test_a_worker_that_is_stopped_for_ever(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], reference: References
) -> None:
    run = begin(system_plan(tmp_path / "run", "sync", 2, SLOW_TALLY, steps=8000, limits=LIMITS))
    run.wait_for_updates(5)
    before = run.processes()["worker-1"]
    os.kill(before.pid, signal.SIGSTOP)
    run.wait_for_successor("worker-1", before)
    code, out, err = run.end()
    assert code == 0, f"{out}\n{err}"
    summary = run.summary()
    assert "local/worker-1: hangs: no heartbeat for limits.lost_after_s (2 s), killed" in out + err
    assert summary["restarts"] == 1
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["weights_sha256"] == reference(run.plan)["weights_sha256"]


def test_a_learner_that_is_stopped_for_ever(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], reference: References
) -> None:
    limits = replace(LIMITS, stalled_after_s=4.0)
    run = begin(system_plan(tmp_path / "run", "sync", 2, SLOW_TALLY, steps=8000, limits=limits))
    run.wait_for_updates(5)
    before = run.processes()["learner-0"]
    os.kill(before.pid, signal.SIGSTOP)
    run.wait_for_successor("learner-0", before)
    code, out, err = run.end()
    assert code == 0, f"{out}\n{err}"
    summary = run.summary()
    assert "local/learner-0: hangs: no heartbeat for limits.stalled_after_s (4 s), killed" in out + err
    assert summary["restarts"] == 1
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["weights_sha256"] == reference(run.plan)["weights_sha256"]
