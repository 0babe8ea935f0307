"""pipelined: the bits of its reference for any number of workers, whatever dies, over a stop and a resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.pipelined_reference import pipelined_reference
from tests.support.runs.system_plans import CARTPOLE, SLOW_SEQUENCES, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, newest_n, resumed
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import HostSection, StoreSection

Begin = Callable[[RunPlan], PlanRun]
STEPS = 12_000


def _plan(run_dir: Path, algorithm: Mapping[str, Any], workers: int = 2) -> RunPlan:
    """With replay a full checkpoint is written every 0.4 s: a new learner begins several rounds earlier."""
    return system_plan(
        run_dir, "pipelined", workers, algorithm, CARTPOLE, steps=STEPS, schedule_steps=STEPS, checkpoint_every_s=0.4
    )


@pytest.mark.parametrize("algorithm", [pytest.param(SLOW_TALLY, id="on-policy"), long(SLOW_SEQUENCES, id="replay")])
def test_kills_and_a_resume_change_no_bit(tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any]) -> None:
    plan = _plan(tmp_path / "run", algorithm)
    run, expected = begin(plan), pipelined_reference(plan)
    for version, victim in ((4, "worker-1"), (10, "broker-0"), (16, "learner-0"), (24, "learner-0")):
        run.wait_for_updates(version)
        before = run.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        run.wait_for_successor(victim, before)
    run.wait_for_updates(newest_n(Path(plan.store_path)) + 2)  # a learner that starts has no figures for the summary
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    stopped = run.summary()
    assert 0 < stopped["env_steps"] < STEPS
    assert stopped["restarts"] == 4
    again = resumed(plan, STEPS)
    done = begin(replace(again, config=replace(again.config, hosts={"local": HostSection(workers=3)}))).done()
    assert {name: done[name] for name in expected} == expected
    for summary in (stopped, done):
        assert summary["ledger"]["balanced"], summary["ledger"]
    assert done["policy_lag"] == {"mean": 1.0, "p50": 1, "p99": 1, "max": 1}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers(tmp_path: Path, begin: Begin, workers: int) -> None:
    """Also without a full checkpoint each round."""
    plan = _plan(tmp_path / "run", SLOW_TALLY, workers)
    run = begin(replace(plan, config=replace(plan.config, store=StoreSection(sync_full_max_mb=0.0, keep=1))))
    expected, done = pipelined_reference(plan), run.done()
    assert {name: done[name] for name in expected} == expected
    assert done["policy_lag"]["max"] == 1
    assert 0.9 < done["policy_lag"]["mean"] < 1, "the first round has a lag of 0"
