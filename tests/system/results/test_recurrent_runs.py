"""Runs of an algorithm with recurrent state: the same bits in single and sync, after deaths and after a resume.

It sees the previous action and reward, and its head completes segments.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl
from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import CARTPOLE, PPO_LSTM, system_plan
from tests.support.runs.system_runs import SAME, PlanRun, assert_same, resumed
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection

Begin = Callable[[RunPlan], PlanRun]
ALGORITHM: Mapping[str, Any] = {"kind": "tests.stand_ins.recurrent_tally:RecurrentTally", "round_s": 0.02}
STEPS = 9_000
STATEFUL = EnvSection(
    id="tests.stand_ins.stateful_envs:Stateful", num_envs=2, vector_envs=4, segment_steps=32, recovery="state"
)
"""Its state is restored, no action is repeated."""


def _plan(
    run_dir: Path, mode: Any, workers: int, env: EnvSection = CARTPOLE, steps: int = STEPS, **more: Any
) -> RunPlan:
    return system_plan(run_dir, mode, workers, ALGORITHM, env, steps=steps, schedule_steps=STEPS, **more)


@pytest.mark.long
@pytest.mark.parametrize("env", [pytest.param(CARTPOLE, id="actions"), long(STATEFUL, id="states")])
def test_the_same_bits_with_one_worker_and_with_two_that_die(
    tmp_path: Path, begin: Begin, reference: References, env: EnvSection
) -> None:
    one = begin(_plan(tmp_path / "one", "sync", 1, env))
    two = begin(_plan(tmp_path / "two", "sync", 2, env, evaluator=EvaluatorSection(episodes=2)))
    for version, victim in ((8, "worker-1"), (16, "learner-0"), (26, "worker-0")):
        two.wait_for_updates(version)
        before = two.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        two.wait_for_successor(victim, before)
    alone = reference(one.plan)
    killed = two.done()
    assert killed["restarts"] == 3
    assert_same(killed, alone)
    assert_same(one.done(), alone)
    if env is CARTPOLE:
        policy = zmqrl.load_policy(two.run_dir)
        obs = np.full((3, 4), 0.1, np.float32)
        first = [policy(obs, 1.0).tolist() for _ in range(4)]
        policy.reset()
        assert [policy(obs, 1.0).tolist() for _ in range(4)] == first


@pytest.mark.long
def test_a_critic_with_memory_of_its_own(tmp_path: Path, begin: Begin, reference: References) -> None:
    """Its state is the learner's alone: it is restored after a death, and by a resume."""

    def plan(name: str, mode: Any, workers: int, steps: int = 4_000) -> RunPlan:
        return system_plan(tmp_path / name, mode, workers, PPO_LSTM, CARTPOLE, steps=steps, schedule_steps=4_000)

    first = begin(plan("killed", "sync", 2, 2_000))
    first.wait_for_updates(4)
    first.kill("learner-0")
    assert first.done()["restarts"] == 1
    second = begin(resumed(first.plan, 4_000)).done()
    straight = reference(plan("straight", "single", 1))
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["single", "sync"])
def test_a_resume(tmp_path: Path, begin: Begin, reference: References, mode: str) -> None:
    straight = reference(_plan(tmp_path / "straight", mode, 3))
    first = begin(_plan(tmp_path / "cut", mode, 3, steps=STEPS // 2))
    before = first.done()["env_steps"]
    second = begin(resumed(first.plan, STEPS)).done()
    assert second["ledger"]["balanced"] and before + second["ledger"]["stored"] == second["env_steps"]
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}
