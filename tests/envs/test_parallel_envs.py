"""Envs with several agents: one slot each, rows after an agent's end are invalid, and a copy resets as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs.agent_envs import AGENTS, Walkers
from tests.support.raising import fields, raises
from zmqrl.acting.base import Policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState, VectorEnv
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.evaluator.evaluation import evaluate
from zmqrl.learner.env_slot_record import EnvSlotRecord
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.random_streams import episode_seed
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.rollout.collector import Collector
from zmqrl.spaces import SpaceSpec
from zmqrl.types import Array, SegmentId, Version

WALKERS = EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6, max_episode_steps=11)
G = len(AGENTS)
LATE = "agent 'middle' is missing after a reset; agents that join later are not supported"


def vector(section: EnvSection = WALKERS, seed: int = 3) -> VectorEnv:
    return make_vector_env(section, probe(section), "sync", seed, 2)


def by_hand(seed: int, actions: Array) -> list[dict[str, Any]]:
    """One copy, played with the env's own API: what each agent saw and was given, per step, until all had ended."""
    env, rows = Walkers(), []
    env.reset(seed=seed)
    for t, row in enumerate(actions):
        there = list(env.agents)
        obs, reward, ends, _, _ = env.step({agent: int(row[AGENTS.index(agent)]) for agent in there})
        cut = t + 1 >= 11
        rows.append({agent: (obs[agent], reward[agent], ends[agent], cut) for agent in there})
        if cut or not env.agents:
            return rows
    raise AssertionError("it has not ended")


def test_agents_may_be_numbers_and_an_env_need_not_close() -> None:
    section = EnvSection(id="tests.envs.agent_envs:Numbered", num_envs=4, max_episode_steps=9)
    assert probe(section).agents == ("0", "1")
    env = vector(section)
    assert env.start()[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert env.step(np.array([1, 0, 0, 1])).reward.tolist() == [1.0, 0.0, 0.0, 1.0]
    env.close()


def test_each_agent_has_what_the_env_gives_it_until_its_end() -> None:
    actions = np.random.default_rng(0).integers(0, 3, (40, 6))
    env = vector()
    env.start()
    results = [tuple(np.array(part) for part in env.step(row)) for row in actions]
    for copy in range(2):
        slots = range(copy * G, copy * G + G)
        expected = by_hand(episode_seed(3, 2, slots.start, 0), actions[:, slots.start : slots.stop])
        left: dict[str, tuple[bool, bool]] = {}
        for t, row in enumerate(expected):
            obs, reward, terminated, truncated = results[t]
            for slot, agent in zip(slots, AGENTS, strict=True):
                if agent in row:
                    assert np.array_equal(obs[slot], row[agent][0])
                    assert (reward[slot], terminated[slot], truncated[slot]) == row[agent][1:]
                    if row[agent][2] or row[agent][3]:
                        left[agent] = row[agent][2:]
                else:
                    assert reward[slot] == 0
                    assert (terminated[slot], truncated[slot]) == left[agent], "the flags stay"
                    assert np.array_equal(obs[slot], results[t - 1][0][slot]), "the last observation stays"
        lengths = [sum(agent in row for row in expected) for agent in AGENTS]
        assert len(set(lengths)) > 1, "the agents end at different steps"
        obs, reward, terminated, truncated = results[len(expected)]
        fresh = Walkers().reset(seed=episode_seed(3, 2, slots.start, 1))[0]
        for slot, agent in zip(slots, AGENTS, strict=True):
            assert np.array_equal(obs[slot], fresh[agent]) and reward[slot] == 0
            assert not terminated[slot] and not truncated[slot]


class Uniform(Policy):
    """Draws from the segment's noise, whatever the weights."""

    def load(self, *_: Any) -> None: ...

    def act(self, obs: Array, t: int, context: Any) -> Array:
        return (np.abs(obs[:, 0] * 64).astype(np.int64) + t) % 3

    def act_greedily(self, obs: Array, state: Any = None) -> Array:
        return self.act(obs, 0, None)


SPEC = ActingSpec((), "categorical", SpaceSpec("discrete", (), "int64", n=3), SpaceSpec("box", (3,), "float32"))


def collected(collector: Collector, index: int, steps: int = 5) -> dict[str, Array]:
    columns: dict[str, Array] = {
        "obs": np.zeros((steps + 1, 6, 3), np.float32),
        "action": np.zeros((steps, 6), np.int64),
        "reward": np.zeros((steps, 6)),
        **{name: np.zeros((steps, 6), bool) for name in ("terminated", "truncated", "valid")},
    }
    rows = collector.collect(columns, index, lambda _: None, lambda: False)
    assert rows == columns["valid"].sum()
    return columns


def test_rows_of_an_agent_that_has_left_are_invalid_and_a_successor_has_the_same_bits() -> None:
    """At every boundary of segments, also where some agents have ended."""
    collector = Collector(vector(), Uniform(), SPEC, 1, 2)
    collector.start()
    record, amid = EnvSlotRecord(6, True, slots_per_env=G), 0
    segments = [collected(collector, index) for index in range(12)]
    joined = {name: np.concatenate([s[name] for s in segments]) for name in ("terminated", "truncated", "valid")}
    done = joined["terminated"] | joined["truncated"]
    assert np.array_equal(joined["valid"][1:], ~done[:-1])
    for index, segment in enumerate(segments[:-1]):
        record.advance(SegmentMeta(SegmentId(2, 0, index), Version(0, 0), 30), segment)
        ended = done[(index + 1) * 5 - 1].reshape(2, G)
        amid += int((ended.any(axis=1) & ~ended.all(axis=1)).sum())
        stored = EnvSlotRecord(6, True, slots_per_env=G)
        stored.load_arrays(record.arrays())
        successor = Collector(vector(), Uniform(), SPEC, 1, 2)
        successor.start(stored.states())
        again = collected(successor, index + 1)
        for name, column in segments[index + 1].items():
            assert np.array_equal(again[name], column), (index, name)
    assert amid >= 2


def test_each_agents_episode_counts_once_with_its_own_return() -> None:
    collector = Collector(vector(), Uniform(), SPEC, 1, 2)
    collector.start()
    tracker = EpisodeTracker(3, 6, slots_per_env=G)
    returns, running = [], np.zeros(6)
    for index in range(12):
        segment = collected(collector, index)
        meta = SegmentMeta(SegmentId(2, 0, index), Version(0, 0), int(segment["valid"].sum()))
        tracker.observe(SegmentBatch(segment, (meta,)))
        for t in range(5):
            running += segment["reward"][t]
            for slot in np.flatnonzero((segment["terminated"] | segment["truncated"])[t] & segment["valid"][t]):
                returns.append(running[slot])
                running[slot] = 0.0
    assert tracker.total == len(returns) > 12
    assert list(tracker.returns) == pytest.approx(returns)


def test_an_evaluation_has_the_mean_of_the_agents() -> None:
    section = replace(WALKERS, num_envs=G)
    score = evaluate(Uniform(), section, probe(section), 4, 7)
    assert len(score.returns) == len(score.lengths) == 4
    for copy, (found, length) in enumerate(zip(score.returns, score.lengths, strict=True)):
        env, gained, steps = Walkers(), dict.fromkeys(AGENTS, 0.0), 0
        obs = env.reset(seed=episode_seed(7, -1, copy * G, 0))[0]
        while env.agents and steps < 11:
            chosen = {agent: int(np.abs(obs[agent][0] * 64).astype(np.int64)) % 3 for agent in env.agents}
            obs, reward, *_ = env.step(chosen)
            steps += 1
            for agent in chosen:
                gained[agent] += reward[agent]
        assert (found, length) == (pytest.approx(np.mean(list(gained.values()))), steps)


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"num_envs": 8}, fields("env.num_envs", "8", what="each of the 3 agents counts as one env")),
        ({"frame_stack": 2}, fields("env.frame_stack", "2", what="frames of several agents are not stacked")),
        (
            {"kwargs": {"fault": "spaces"}},
            fields(
                "env.id",
                "'tests.envs.agent_envs:Walkers'",
                fix="use a wrapper that makes them equal, such as those of supersuit",
            ),
        ),
        ({"kwargs": {"fault": "late"}}, fields("env.id", "'tests.envs.agent_envs:Walkers'", what=LATE)),
    ],
)
def test_what_does_not_fit_is_refused_before_the_start(section: dict[str, Any], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        probe(replace(WALKERS, **section))


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("raise", "step raised RuntimeError: the rope broke"),
        ("nan", "agent 'right': the observation has NaN: [nan nan nan]"),
        ("silent", "agent 'right': step returned no observation of it, and it had not ended"),
        ("gone", "agent 'left': it left `agents` and was neither terminated nor truncated"),
    ],
)
def test_a_fault_names_the_agent_and_the_place(fault: str, what: str) -> None:
    env = vector(replace(WALKERS, num_envs=3, kwargs={"fault": fault}))
    env.start()
    for _ in range(3):
        env.step(np.zeros(3, np.int64))
    with raises(EnvFault, what=what) as caught:
        env.step(np.zeros(3, np.int64))
    assert caught.value.detail["episode"] == 0 and caught.value.detail["step"] == 4
    assert caught.value.detail["seed"] == episode_seed(3, 2, 0, 0)


def test_a_replay_of_an_env_that_does_not_repeat_itself_resets_next() -> None:
    env = vector()
    env.start(tuple(EnvSlotState(4, np.full(20, 2)) for _ in range(6)))
    assert env.ended().all()
    assert not (env.step(np.zeros(6, np.int64)).terminated).any()
