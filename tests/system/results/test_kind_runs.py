"""Runs of every kind, and of the parts that several have: the same bits in every mode, after deaths and after a stop.

A kind that trains on data sets alone is in `tests/learner/test_offline.py`. That compiled updates are the eager ones
is in `tests/algorithms/test_kinds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import (
    A2C,
    ACROBOT,
    APPO,
    CARTPOLE,
    CQL,
    DDPG,
    DQN,
    IMPALA,
    IQL,
    MPO,
    NORMALISED,
    PENDULUM,
    PPO,
    PPO_GRU,
    PQN,
    PRIORITISED,
    QRDQN,
    REINFORCE,
    SAC,
    SAC_DISCRETE,
    SEQUENCES,
    STACKED,
    TD3,
    TQC,
    VMPO,
    system_plan,
)
from tests.support.runs.system_runs import SAME, PlanRun, assert_same, resumed
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.make import kind_of
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection
from zmqrl.plugins import modules

Begin = Callable[[RunPlan], PlanRun]
ROUNDS = 8
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
HER: Mapping[str, Any] = {"relabel": {"reward": f"{FLIPS}:reward", "terminated": f"{FLIPS}:reached"}}
RND: Mapping[str, Any] = {"intrinsic": {"kind": "rnd"}}
ICM: Mapping[str, Any] = {"intrinsic": {"kind": "icm", "kwargs": {"features": 16}}}
APE_X: Mapping[str, Any] = {"prioritised": {}, "worker_priorities": True, "ladder": 7, "n_step": 3}
RUNS: Mapping[str, tuple[Mapping[str, Any], EnvSection]] = {
    "ppo": (PPO, CARTPOLE),
    "ppo-normalised": (NORMALISED, ACROBOT),
    "ppo-gaussian": ({**PPO, "normalise_reward": True}, PENDULUM),
    "ppo-rnd": ({**PPO, **RND}, CARTPOLE),
    "ppo_gru": (PPO_GRU, CARTPOLE),
    "a2c": (A2C, CARTPOLE),
    "reinforce": (REINFORCE, CARTPOLE),
    "impala": (IMPALA, CARTPOLE),
    "appo-lstm": (APPO, CARTPOLE),
    "pqn": (PQN, CARTPOLE),
    "vmpo": (VMPO, CARTPOLE),
    "vmpo-gaussian": (VMPO, PENDULUM),
    "sac": (SAC, PENDULUM),
    "sac-discrete": (SAC_DISCRETE, CARTPOLE),
    "sac-icm": ({**SAC, **ICM}, PENDULUM),
    "td3": (TD3, PENDULUM),
    "tqc": (TQC, PENDULUM),
    "ddpg": (DDPG, PENDULUM),
    "mpo": (MPO, PENDULUM),
    "iql": (IQL, CARTPOLE),
    "cql": (CQL, PENDULUM),
    "dqn": (DQN, CARTPOLE),
    "dqn-noisy": ({**DQN, "noisy": True, "dueling": True}, CARTPOLE),
    "dqn-prioritised": (PRIORITISED, CARTPOLE),
    "dqn-her": ({"kind": "dqn", **HER}, BIT_FLIP),
    "dqn-icm": ({"kind": "dqn", "batch_size": 64, **ICM}, CARTPOLE),
    "dqn-ape_x": ({"kind": "dqn", "batch_size": 64, **APE_X}, CARTPOLE),
    "dqn-munchausen": ({"kind": "dqn", "batch_size": 64, "double": False, "munchausen": {}}, CARTPOLE),
    "qrdqn": (QRDQN, CARTPOLE),
    "qrdqn-rainbow": ({**QRDQN, "noisy": True, "dueling": True, "prioritised": {}}, CARTPOLE),
    "c51": ({"kind": "c51", "batch_size": 64, "high": 100.0, "munchausen": {}}, CARTPOLE),
    "rainbow": ({"kind": "rainbow", "batch_size": 64, "atoms": 11, "high": 100.0}, CARTPOLE),
    "iqn": ({"kind": "iqn", "batch_size": 64, "quantiles": 8}, CARTPOLE),
    "r2d2": (R2D2, CARTPOLE),
    "r2d2-rnd": ({**R2D2, **RND}, CARTPOLE),
    "sequences": (SEQUENCES, CARTPOLE),
    "sequences-of-stacks": (SEQUENCES, STACKED),
}
IN_SHORT = "r2d2-rnd"
"""It has most of the parts: recurrent state, sequences by priority, the previous action, an intrinsic reward."""


def plan_of(run_dir: Path, mode: Any, workers: int, name: str, rounds: int = ROUNDS, **more: Any) -> RunPlan:
    algorithm, env = RUNS[name]
    rows = env.num_envs * env.vector_envs * env.segment_steps
    more = {"steps": rounds * rows, "schedule_steps": ROUNDS * rows, **more}
    return system_plan(run_dir, mode, workers, algorithm, env, **more)


def test_every_kind_is_among_them() -> None:
    trained = {name for name in modules("zmqrl.algorithms", Algorithm) if kind_of(name).modes != {"offline"}}
    assert trained <= {algorithm["kind"] for algorithm, _ in RUNS.values()}


@pytest.mark.parametrize("name", [name if name == IN_SHORT else long(name) for name in RUNS])
def test_the_same_bits_with_three_workers_that_die(
    tmp_path: Path, begin: Begin, reference: References, name: str
) -> None:
    three = begin(plan_of(tmp_path / "three", "sync", 3, name))
    for version, victim in ((2, "worker-1"), (4, "learner-0")):
        three.wait_for_updates(version)
        before = three.processes()[victim]
        three.kill(victim)
        three.wait_for_successor(victim, before)
    killed = three.done()
    assert (killed["restarts"], killed["policy_lag"]["max"]) == (2, 0)
    assert_same(killed, reference(three.plan))


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_resume_with_two_workers(tmp_path: Path, begin: Begin, reference: References, name: str) -> None:
    first = begin(plan_of(tmp_path / "cut", "sync", 2, name, ROUNDS // 2))
    before = first.done()["env_steps"]
    whole = plan_of(tmp_path / "straight", "single", 1, name)
    second = begin(resumed(first.plan, whole.config.run.total_env_steps)).done()
    assert second["ledger"]["balanced"] and before + second["ledger"]["stored"] == second["env_steps"]
    straight = reference(whole)
    assert straight["updates"] > ROUNDS // 2
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_one_worker_has_the_bits_of_single(tmp_path: Path, begin: Begin, reference: References, name: str) -> None:
    """With `run.debug`, in which PPO fails where the ratio of the first minibatch of an update is not 1."""
    one = begin(plan_of(tmp_path / "one", "sync", 1, name, debug=True))
    assert_same(one.done(), reference(plan_of(tmp_path / "single", "single", 1, name)))
