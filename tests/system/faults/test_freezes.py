"""The whole run is frozen (a VM pause, a cgroup freezer, `scontrol suspend`) for longer than anybody may be silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import END_S
from tests.support.runs.references import References
from tests.support.runs.system_plans import SLOW_TALLY, WAITING_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same
from tests.support.waiting import WAIT_S
from tests.support.yardstick import within
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection
from zmqrl.supervision.process_table import await_gone

pytestmark = pytest.mark.timed

Begin = Callable[[RunPlan], PlanRun]
STEPS = 12_000
LOST_S, LEASE_S = 2.0, 3.0
FROZEN_S = LOST_S + 3.0
HEAD_START_S = 0.6
JUDGES = ("broker-0", "agent-0")
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0, lost_after_s=LOST_S, host_lease_s=LEASE_S)


def freeze(run: PlanRun, seconds: float) -> None:
    """Who judges the others continues first, and has nothing new from them when it looks round."""
    processes = {**run.processes(), "launcher": None}
    pids = {name: run.process.pid if process is None else process.pid for name, process in processes.items()}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)  # the freeze's length
    finally:
        for name in JUDGES:
            os.kill(pids.pop(name), signal.SIGCONT)
        time.sleep(HEAD_START_S)
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)


def test_a_run_that_was_frozen_continues_with_the_same_processes_and_bits(
    tmp_path: Path, begin: Begin, reference: References
) -> None:
    plan = system_plan(tmp_path / "run", "sync", 2, SLOW_TALLY, steps=STEPS, limits=LIMITS)
    run = begin(plan)
    run.wait_for_updates(6)
    freeze(run, FROZEN_S)
    summary = run.done()
    assert summary["restarts"] == 0
    assert not any(summary["ledger"]["dropped"].values())
    assert_same(summary, reference(plan))


def test_a_host_whose_launcher_alone_is_frozen_still_ends(tmp_path: Path, begin: Begin) -> None:
    run = begin(system_plan(tmp_path / "run", "sync", 2, WAITING_TALLY, steps=10_000_000, limits=LIMITS))
    run.wait_for_updates(3)
    processes = run.processes()
    del processes["agent-0"]  # it is the launcher's to reap
    os.kill(run.process.pid, signal.SIGSTOP)
    try:
        with within(LEASE_S + END_S):
            left = await_gone(list(processes.values()), WAIT_S)
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
    assert not left
    assert "limits.host_lease_s" in run.end()[2]
