"""Frames that are stored once, read as the stacks of gymnasium's FrameStackObservation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from tests.envs.odd_envs import Stateful
from tests.support.raising import raises
from tests.support.runs.system_plans import TALLY, system_plan
from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.errors import ConfigError
from zmqrl.replay.base import gather, last_observation
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.rollout.collector import Collector
from zmqrl.types import Array, SegmentId, SegmentMeta, SlotRef, Version

SLOTS, T, N, SEED = 5, 7, 3, 4
WALKER, STATEFUL = "tests.envs.odd_envs:Offset", "tests.envs.odd_envs:Stateful"


def stacked_by_gymnasium(depth: int) -> Any:
    return FrameStackObservation(Stateful(), depth)


class Recorded(Policy):
    """Random actions; keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Array] = []

    def load(self, weights: Any, schedule: Any) -> None:
        pass

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        self.seen.append(obs.copy())
        actions: Array = (context.noise.uniform[t, :, 0] * 3).astype(np.int64)
        return actions

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        raise NotImplementedError


def collected(depth: int, env_id: str) -> tuple[dict[str, Array], Array]:
    """Columns of slots, and what the policy saw `[SLOTS, T + 1, N, k, 2]`."""
    section = EnvSection(id=env_id, num_envs=N, frame_stack=depth, max_episode_steps=9)
    spec, policy = probe(section), Recorded()
    assert spec.observation.shape == (depth, 2)
    env = make_vector_env(section, spec, "sync", SEED, 1)
    collector = Collector(env, policy, ActingSpec((), "epsilon_greedy", spec.action, spec.observation), SEED, 1)
    collector.start()
    flags = {name: np.zeros((SLOTS + 1, T, N), bool) for name in ("terminated", "truncated", "valid")}
    columns = {
        "obs": np.full((SLOTS + 1, T + depth, N, 2), 77, spec.observation.dtype),
        "action": np.zeros((SLOTS + 1, T, N), np.int64),
        "reward": np.zeros((SLOTS + 1, T, N), np.float32),
        **flags,
    }
    for slot in range(SLOTS + 1):
        views = {name: column[slot] for name, column in columns.items()}
        assert collector.collect(views, slot, lambda rows: None, lambda: False)
    seen = np.array(policy.seen).reshape(SLOTS + 1, T, N, depth, 2)
    # The observation after the last row is that of the first row of the next segment.
    return columns, np.concatenate((seen[:-1], seen[1:, :1]), 1)


@pytest.mark.parametrize("depth", [2, 4, 9])
@pytest.mark.parametrize("env_id", [WALKER, STATEFUL])
def test_stacks_are_those_that_acted(depth: int, env_id: str) -> None:
    columns, seen = collected(depth, env_id)
    ended = columns["terminated"] | columns["truncated"]
    assert ended.sum() > 6 and not columns["valid"][:, 0].all()
    order = [3, 0, 4]
    metas = [SegmentMeta(SegmentId(0, 0, slot), Version(0, 0), 1) for slot in order]
    batch = gather(columns, [SlotRef(slot, 1) for slot in order], metas)
    assert batch.columns["obs"].flags.c_contiguous
    assert np.array_equal(batch.columns["obs"], np.concatenate(seen[sorted(order)], 1))
    replay = SegmentReplay(columns, SLOTS, 1, ReplaySpec())
    sequences = SegmentReplay(columns, SLOTS, 1, ReplaySpec(length=3, burn_in=2, stride=2))
    for slot in range(SLOTS):
        assert np.array_equal(last_observation(columns, slot), seen[slot, T])
        for each in (replay, sequences):
            each.add(SlotRef(slot, 1), metas[0])
    one = replay.sample(300, 1, 0.9, 1)
    slots, t, env = one.rows // (T * N), one.rows // N % T, one.rows % N
    assert np.array_equal(one.obs, seen[slots, t, env]) and np.array_equal(one.next_obs, seen[slots, t + 1, env])
    many = sequences.sample_sequences(100, 1)
    slots, start, env = many.rows // (2 * N), many.rows // N % 2 * 2, many.rows % N
    assert np.array_equal(many.obs, seen[slots, start + np.arange(6)[:, None], env])


@pytest.mark.parametrize("depth", [1, 3])
def test_acting_sees_what_gymnasium_stacks(depth: int) -> None:
    theirs = EnvSection(id="tests.replay.test_frame_stacks:stacked_by_gymnasium", num_envs=N, kwargs={"depth": depth})
    own = EnvSection(id=STATEFUL, num_envs=N, frame_stack=depth)
    found = []
    for section in (theirs, own):
        env = make_vector_env(section, probe(section), "sync", SEED, 1)
        seen = [np.array(env.start())]
        seen += [np.array(env.step(np.arange(N) % 3).obs) for _ in range(40)]
        found.append(np.array(seen).reshape(41, N, depth, 2))
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("env_id", [WALKER, STATEFUL])
def test_a_plan_with_stacks_stores_each_frame_once(tmp_path: Path, env_id: str) -> None:
    env = EnvSection(id=env_id, num_envs=2, vector_envs=2, segment_steps=16, frame_stack=4, max_episode_steps=30)
    env = replace(env, recovery="state" if env_id == STATEFUL else "exact")
    plan = system_plan(tmp_path / "run", "sync", 2, TALLY, env)
    (obs,) = (column for column in plan.columns if column.name == "obs")
    assert obs.shape == (20, 2, 2) and plan.env.observation.shape == (4, 2)
    assert (plan.env.state is None) == (env_id == WALKER)


def test_only_boxes_are_stacked() -> None:
    with raises(ConfigError, key=("env", "frame_stack"), value="2"):
        probe(EnvSection(id="FrozenLake-v1", frame_stack=2))
