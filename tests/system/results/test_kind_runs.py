"""Runs of kinds that were written on the public seam: the same bits in every mode, after deaths and after a stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import CARTPOLE, PPO, system_plan
from tests.support.runs.system_runs import SAME, PlanRun, assert_same, resumed
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan

Begin = Callable[[RunPlan], PlanRun]
STEPS = 2_000
R2D2: Mapping[str, Any] = {
    "kind": "r2d2",
    "batch_size": 8,
    "burn_in": 4,
    "length": 4,
    "stride": 4,
    "lstm_size": 16,
    "target_update_every": 50,
}
FLIPS = "tests.stand_ins.bit_flip"
BIT_FLIP = replace(CARTPOLE, id=f"{FLIPS}:BitFlip", max_episode_steps=20)
KINDS: Mapping[str, Mapping[str, Any]] = {
    "dqn-her": {"kind": "dqn", "relabel": {"reward": f"{FLIPS}:reward", "terminated": f"{FLIPS}:reached"}},
    "r2d2": R2D2,
    "r2d2-rnd": {**R2D2, "intrinsic": {"kind": "rnd"}},
    "ppo-rnd": {**PPO, "intrinsic": {"kind": "rnd"}},
    "dqn-icm": {"kind": "dqn", "batch_size": 64, "intrinsic": {"kind": "icm", "kwargs": {"features": 16}}},
    "rainbow": {"kind": "rainbow", "batch_size": 64, "atoms": 11, "high": 100.0},
    "c51": {"kind": "c51", "batch_size": 64, "high": 100.0, "munchausen": {}},
    "iqn": {"kind": "iqn", "batch_size": 64, "quantiles": 8},
    "qrdqn-rainbow": {"kind": "qrdqn", "batch_size": 64, "noisy": True, "dueling": True, "prioritised": {}},
    "ape-x": {"kind": "dqn", "batch_size": 64, "prioritised": {}, "worker_priorities": True, "ladder": 7, "n_step": 3},
    "dqn-munchausen": {"kind": "dqn", "batch_size": 64, "double": False, "munchausen": {}},
}
IN_SHORT = "r2d2-rnd"
EACH = pytest.mark.parametrize("kind", [name if name == IN_SHORT else long(name) for name in KINDS])


def plan_of(run_dir: Path, mode: Any, workers: int, kind: str, steps: int = STEPS, **more: Any) -> RunPlan:
    env = BIT_FLIP if "relabel" in KINDS[kind] else CARTPOLE
    return system_plan(run_dir, mode, workers, KINDS[kind], env, steps=steps, schedule_steps=STEPS, **more)


@EACH
def test_the_same_bits_with_three_workers_that_die(
    tmp_path: Path, begin: Begin, reference: References, kind: str
) -> None:
    three = begin(plan_of(tmp_path / "three", "sync", 3, kind))
    for version, victim in ((2, "worker-1"), (4, "learner-0")):
        three.wait_for_updates(version)
        before = three.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        three.wait_for_successor(victim, before)
    killed = three.done()
    assert killed["restarts"] == 2
    assert_same(killed, reference(three.plan))


@pytest.mark.long
@EACH
def test_a_resume_with_two_workers(tmp_path: Path, begin: Begin, reference: References, kind: str) -> None:
    first = begin(plan_of(tmp_path / "cut", "sync", 2, kind, steps=STEPS // 2))
    first.done()
    second = begin(resumed(first.plan, STEPS)).done()
    straight = reference(plan_of(tmp_path / "straight", "single", 1, kind))
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}


@pytest.mark.parametrize("kind", [long(name) for name in KINDS])
def test_one_worker_has_the_bits_of_single(tmp_path: Path, begin: Begin, reference: References, kind: str) -> None:
    one = begin(plan_of(tmp_path / "one", "sync", 1, kind))
    assert_same(one.done(), reference(one.plan))
