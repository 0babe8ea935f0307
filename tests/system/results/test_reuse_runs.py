"""Runs that use segments again, held by an on-policy kind or with other goals: the same bits in every mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import CARTPOLE, system_plan
from tests.support.runs.system_runs import SAME, PlanRun, assert_same, resumed
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection
from zmqrl.data_stores.directory import DirectoryStore

Begin = Callable[[RunPlan], PlanRun]
STEPS, PHASE = 4_200, 3
BIT_FLIP = EnvSection(
    id="tests.stand_ins.bit_flip:BitFlip", num_envs=2, vector_envs=4, segment_steps=8, max_episode_steps=20
)
"""Its episodes last up to four segments."""
HELD: Mapping[str, Any] = {"kind": "tests.stand_ins.held_tally:HeldTally", "phase": PHASE, "minibatch_size": 64}
HINDSIGHT: Mapping[str, Any] = {"kind": "tests.stand_ins.bit_flip:HindsightTally", "round_s": 0.01}
SLOW = {**HELD, "round_s": 0.03}
EACH = pytest.mark.parametrize(
    ("algorithm", "env"),
    [long(SLOW, CARTPOLE, id="held"), pytest.param(HINDSIGHT, BIT_FLIP, id="hindsight")],
)


def _plan(
    run_dir: Path, mode: Any, workers: int, algorithm: Any, env: EnvSection, steps: int = STEPS, **more: Any
) -> RunPlan:
    return system_plan(run_dir, mode, workers, algorithm, env, steps=steps, schedule_steps=STEPS, **more)


@EACH
def test_the_same_bits_with_one_worker_and_with_three_that_die(
    tmp_path: Path, begin: Begin, reference: References, algorithm: Any, env: EnvSection
) -> None:
    one = begin(_plan(tmp_path / "one", "sync", 1, algorithm, env))
    three = begin(_plan(tmp_path / "three", "sync", 3, algorithm, env))
    for version, victim in ((4, "worker-1"), (8, "learner-0"), (12, "worker-0")):
        three.wait_for_updates(version)
        before = three.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        three.wait_for_successor(victim, before)
    alone = reference(one.plan)
    killed = three.done()
    assert killed["restarts"] == 3
    assert_same(killed, alone)
    assert_same(one.done(), alone)


@pytest.mark.long
@pytest.mark.parametrize("mode", [long("single"), "sync"])
@EACH
def test_a_resume(
    tmp_path: Path, begin: Begin, reference: References, algorithm: Any, env: EnvSection, mode: str
) -> None:
    straight = reference(_plan(tmp_path / "straight", mode, 2, algorithm, env))
    first = begin(_plan(tmp_path / "cut", mode, 2, algorithm, env, steps=STEPS // 2))
    before = first.done()["env_steps"]
    full = DirectoryStore(first.plan.store_path, 8).newest_full()
    assert full is not None and len(full.arrays["held_metas"]) == first.plan.held_segments
    second = begin(resumed(first.plan, STEPS)).done()
    assert second["ledger"]["balanced"] and before + second["ledger"]["stored"] == second["env_steps"]
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}


def test_async_holds_batches_also_after_the_learner_was_killed(tmp_path: Path, begin: Begin) -> None:
    """The run ends with the batch that reaches its total: held segments are not taken for unused ones."""
    run = begin(_plan(tmp_path / "run", "async", 2, SLOW, CARTPOLE, checkpoint_every_s=0.1))
    run.wait_for_updates(6)
    before = run.processes()["learner-0"]
    os.kill(before.pid, signal.SIGKILL)
    run.wait_for_successor("learner-0", before)
    summary = run.done()
    assert summary["restarts"] == 1 and summary["ledger"]["balanced"], summary["ledger"]
    assert STEPS <= summary["env_steps"] <= summary["ledger"]["stored"]
