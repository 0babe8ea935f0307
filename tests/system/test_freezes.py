"""The whole run is frozen (a VM pause, a cgroup freezer, `scontrol suspend`) for longer than anybody may be silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from system_plans import PPO, system_plan
from system_runs import Run, assert_same

from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection

Begin = Callable[[RunPlan], Run]
STEPS = 12_000
LOST_S, LEASE_S = 2.0, 3.0
FROZEN_S = LOST_S + 3.0
HEAD_START_S = 0.6
JUDGES = ("broker-0", "agent-0")
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0, lost_after_s=LOST_S, host_lease_s=LEASE_S)


def freeze(run: Run, seconds: float) -> None:
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


def test_a_run_that_was_frozen_continues_with_the_same_processes_and_bits(tmp_path: Path, begin: Begin) -> None:
    plan = system_plan(tmp_path / "run", "sync", 2, {**PPO, "epochs": 10}, steps=STEPS, limits=LIMITS)
    run = begin(plan)
    run.wait_for_updates(6)
    freeze(run, FROZEN_S)
    summary = run.done()
    assert summary["restarts"] == 0
    assert not any(summary["ledger"]["dropped"].values())
    straight = replace(plan, run_dir=str(tmp_path / "straight"), store_path=str(tmp_path / "straight" / "checkpoints"))
    assert_same(summary, begin(straight).done())
