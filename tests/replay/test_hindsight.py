"""Relabelling against the definition of HER (Andrychowicz et al. 2017, algorithm 1, strategy `future`) by walking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.replay import goals
from tests.replay.goals import PACKED, PLAIN, Walks, distance
from tests.support.raising import fields, raises
from zmqrl.errors import ConfigError
from zmqrl.random_streams import stream
from zmqrl.replay.base import ReplaySample
from zmqrl.replay.segment_replay import SegmentReplay, check_spec
from zmqrl.replay.spec import Prioritised, Relabel, ReplaySpec
from zmqrl.types import SpaceSpec

HERE = "tests.replay.goals"
FUTURE = Relabel(f"{HERE}:distance")
ENDING = replace(FUTURE, terminated=f"{HERE}:near")
ENDLESS = replace(FUTURE, terminated=f"{HERE}:never")
BATCH, GAMMA = 400, 0.9


def later(walks: Walks, slots: Any, sample: ReplaySample, i: int) -> Any:
    place, within = divmod(int(sample.rows[i]), walks.steps * walks.envs)
    t, env = divmod(within, walks.envs)
    return walks.from_row(int(slots[place]), t, env), env


def check(walks: Walks, relabel: Relabel, places: int, n_step: int, **kept: Any) -> ReplaySample:
    """Goals, returns, flags and observations of a sample are those of walking; returns it."""
    spec = ReplaySpec(n_step=n_step, relabel=relabel)
    replay = walks.replay(spec, places, **kept)
    sample, slots = replay.sample(BATCH, n_step, GAMMA, key=3), replay._held.slots
    random = stream(1, "relabel", index=3)
    is_other = random.random(BATCH) < relabel.share
    futures = [later(walks, slots, sample, i)[0] for i in np.flatnonzero(is_other)]
    drawn = iter(random.integers(0, np.array([len(future) for future in futures])))
    for i in range(BATCH):
        future, env = later(walks, slots, sample, i)
        first = future[0]
        goal = future[next(drawn)].after if is_other[i] else walks.desired[first.slot, first.t, env]
        total, discount, last = 0.0, 1.0, first
        for k, step in enumerate(future[:n_step]):
            if step.slot != first.slot:
                break
            reward = float(walks.columns["reward"][step.slot, step.t, env])
            terminated = step.terminated
            if is_other[i]:
                reward = float(distance(step.after[None], goal[None])[0])
                if relabel.terminated:
                    ends = getattr(goals, relabel.terminated.partition(":")[2])
                    terminated = bool(ends(step.after[None], goal[None])[0])
            total, discount, last = total + GAMMA**k * reward, GAMMA ** (k + 1), step
            if terminated:
                discount = 0.0
                break
        assert abs(sample.n_step_return[i] - total) < 1e-4 and abs(sample.discount[i] - discount) < 1e-6
        for obs, (slot, t) in ((sample.obs, (first.slot, first.t)), (sample.next_obs, (last.slot, last.t + 1))):
            stored = walks.columns["obs"][slot, t, env].copy()
            parts = replace_desired(walks, stored, goal)
            assert np.array_equal(obs[i], parts)
        assert sample.action[i] == walks.columns["action"][first.slot, first.t, env]
    return sample


def replace_desired(walks: Walks, obs: Any, goal: Any) -> Any:
    part = next(part for part in walks.space.parts if part.name == walks.names[1])
    raw = bytearray(obs.tobytes())
    raw[part.offset : part.offset + part.space.nbytes] = np.asarray(goal, part.space.dtype).tobytes()
    return np.frombuffer(bytes(raw), obs.dtype)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("relabel", [FUTURE, ENDING, ENDLESS, replace(FUTURE, share=0.3)])
@pytest.mark.parametrize("seed", range(2))
def test_transitions_have_the_goals_and_rewards_of_walking_their_episodes(
    seed: int, relabel: Relabel, n_step: int
) -> None:
    check(Walks(seed), relabel, 10, n_step)


@pytest.mark.parametrize(("end_share", "places"), [(0.0, 9), (0.02, 9), (0.6, 9), (0.0, 2), (0.0, 1)])
def test_episodes_of_one_row_and_of_all_segments_that_are_held(end_share: float, places: int) -> None:
    check(Walks(3, end_share=end_share), FUTURE, places, 1)


def test_parts_of_another_dtype_and_name() -> None:
    names = "goal.now", "goal.then"
    walks = Walks(4, space=PACKED, names=names)
    check(walks, replace(ENDING, goals=names), 10, 2)


def test_an_episode_continues_in_another_incarnation_where_it_is_moved() -> None:
    walks = Walks(5, end_share=0.05)
    walks.incarnations = (0, 0, 1, 1, 4, 5, 5)  # another process continues the same episodes
    check(walks, FUTURE, 14, 1)


def test_no_goal_is_of_another_incarnation_where_episodes_begin_again() -> None:
    check(Walks(6, end_share=0.05, incarnations=(0, 0, 1, 1, 4, 5, 5)), FUTURE, 14, 1, continues_episodes=False)


def test_a_goal_was_achieved_later_in_the_same_episode_of_the_same_env_slot() -> None:
    walks, relabel = Walks(7, segments=20, end_share=0.04), replace(FUTURE, share=1.0)
    replay = walks.replay(ReplaySpec(relabel=relabel), 30)
    for key in range(10):
        sample = replay.sample(BATCH, 1, GAMMA, key)
        (stream, episode, step), goal = sample.obs[:, :3].T, sample.obs[:, 3:6]
        assert np.array_equal(goal[:, 0], stream) and np.array_equal(goal[:, 1], episode)
        assert (goal[:, 2] > step).all()
        assert np.array_equal(sample.next_obs[:, 3:6], goal)
        assert np.array_equal(sample.n_step_return, distance(sample.next_obs[:, :3], goal))


def test_each_later_row_is_as_likely_and_the_share_is_kept() -> None:
    walks = Walks(8, vector_envs=1, envs=1, end_share=0.0)
    replay = walks.replay(ReplaySpec(relabel=FUTURE), 7)
    sample = replay.sample(60_000, 1, GAMMA, 1)
    step, goal = sample.obs[:, 2], sample.obs[:, 5]
    assert abs((goal >= 0).mean() - FUTURE.share) < 0.01
    from_the_first = goal[(step == 0) & (goal >= 0)].astype(int)
    counts = np.bincount(from_the_first, minlength=29)[1:]
    mean = counts.mean()
    assert len(counts) == 28 and ((counts - mean) ** 2 / mean).sum() < 27 + 5 * np.sqrt(2 * 27)


def test_a_replay_that_holds_the_same_segments_again_draws_the_same() -> None:
    walks, spec = Walks(9), ReplaySpec(relabel=FUTURE, prioritised=Prioritised())
    replay = walks.replay(spec, 9)
    successor = SegmentReplay(walks.columns, 9, 1, spec, walks.space)
    successor.load_state(replay.state())
    for ref, meta in replay.held():
        successor.add(ref, meta)
    one, other = (made.sample(50, 1, GAMMA, 2) for made in (replay, successor))
    assert all(one.columns[name].tobytes() == other.columns[name].tobytes() for name in one.columns)


def test_without_a_share_nothing_is_changed() -> None:
    walks = Walks(10)
    one = walks.replay(ReplaySpec(relabel=replace(FUTURE, share=0.0)), 9).sample(50, 1, GAMMA, 2)
    other = walks.replay(ReplaySpec(), 9).sample(50, 1, GAMMA, 2)
    assert all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns)


@pytest.mark.parametrize(
    ("relabel", "space", "fault"),
    [
        (FUTURE, SpaceSpec("box", (4,), "float32"), fields("Relabel.goals", repr(FUTURE.goals))),
        (replace(FUTURE, goals=("achieved_goal", "goal")), PLAIN, fields("Relabel.goals", "('achieved_goal', 'goal')")),
        (replace(FUTURE, goals=("observation",)), PLAIN, fields("Relabel.goals", "('observation',)")),  # type: ignore[arg-type]
        (replace(FUTURE, goals=("flags", "goal.now")), PACKED, fields("Relabel.goals", "('flags', 'goal.now')")),
        (Relabel("distance"), PLAIN, fields("Relabel.reward", "'distance'")),
        (Relabel(f"{HERE}:distanse"), PLAIN, fields("Relabel.reward", f"'{HERE}:distanse'")),
        (Relabel("tests.replay.no:x"), PLAIN, fields("Relabel.reward", "'tests.replay.no:x'")),
        (
            Relabel(f"{HERE}:Walks"),
            PLAIN,
            fields("Relabel.reward", f"'{HERE}:Walks'", what="must be a function, found class Walks"),
        ),
        (Relabel(Walks), PLAIN, fields("Relabel.reward", repr(Walks))),  # type: ignore[arg-type]
        (Relabel(f"{HERE}:GOAL"), PLAIN, fields("Relabel.reward", f"'{HERE}:GOAL'")),
        (Relabel(f"{HERE}:flat"), PLAIN, fields("Relabel.reward", f"'{HERE}:flat'")),
        (Relabel(f"{HERE}:broken"), PLAIN, fields("Relabel.reward", f"'{HERE}:broken'")),
        (Relabel(f"{HERE}:undefined"), PLAIN, fields("Relabel.reward", f"'{HERE}:undefined'")),
        (replace(FUTURE, terminated=f"{HERE}:flat"), PLAIN, fields("Relabel.terminated", f"'{HERE}:flat'")),
    ],
)
def test_what_does_not_fit_is_refused(relabel: Relabel, space: SpaceSpec, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        check_spec(ReplaySpec(relabel=relabel), {"reward": (4, 1)}, observation=space)


def test_sequences_and_impossible_shares_are_refused() -> None:
    with raises(ConfigError, **fields("ReplaySpec.relabel", what="needs transitions: `length` must be 0")):
        ReplaySpec(length=4, relabel=FUTURE)
    with raises(ConfigError, **fields("Relabel.share", "1.2", what="must be between 0 and 1")):
        Relabel("a:b", 1.2)
