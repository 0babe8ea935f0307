from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.errors import EnvFault
from zmqrl.learner.env_slot_record import ActionHistory
from zmqrl.random_streams import episode_seed


def counting(**kwargs):
    section = EnvSection(id="tests.envs.odd_envs:Counting", num_envs=2, kwargs=kwargs)
    return make_vector_env(section, probe(section), "sync", 9, 3)


def test_each_episode_has_its_own_named_seed() -> None:
    env = counting(length=2)
    seen = [env.start()[1, 0]]
    seen += [env.step(np.zeros(2, np.int64)).obs[1, 0] for _ in range(5)]
    named = [episode_seed(9, 3, 1, episode) for episode in range(2)]
    assert seen == [named[0]] * 3 + [named[1]] * 3


def test_actions_are_shifted_to_the_space() -> None:
    env = counting()
    env.start()
    assert env.step(np.array([0, 3])).obs[:, 2].tolist() == [1.0, 4.0]


def test_the_same_trajectory_as_gymnasium_itself() -> None:
    section = EnvSection(num_envs=1)
    env = make_vector_env(section, probe(section), "sync", 1, 0)
    single = gym.make("CartPole-v1", max_episode_steps=20)
    section = EnvSection(num_envs=1, kwargs={"max_episode_steps": 20})
    env = make_vector_env(section, probe(section), "sync", 1, 0)
    assert np.array_equal(env.start()[0], single.reset(seed=episode_seed(1, 0, 0, 0))[0])
    for t in range(20):
        result = env.step(np.array([t % 2]))
        obs, reward, terminated, truncated, _ = single.step(t % 2)
        assert np.array_equal(result.obs[0], obs)
        assert (result.reward[0], result.terminated[0], result.truncated[0]) == (reward, terminated, truncated)
    assert truncated


def test_a_successor_continues_with_the_same_bits() -> None:
    section = EnvSection(num_envs=2)
    spec = probe(section)
    first = make_vector_env(section, spec, "sync", 1, 0)
    actions = np.random.default_rng(0).integers(0, 2, (60, 2))
    first.start()
    history = [tuple(np.array(part) for part in first.step(row)) for row in actions]
    ends = [np.flatnonzero(np.array([h[2][slot] | h[3][slot] for h in history])) for slot in range(2)]
    for cut in (1, 7, int(ends[0][0]) + 1, int(ends[0][0]) + 2, int(ends[1][0]) + 1, 40):
        states = []
        for slot in range(2):
            before = [t for t in ends[slot].tolist() if t < cut]
            resetting = bool(before) and before[-1] == cut - 1
            finished = before[:-1] if resetting else before
            begun = finished[-1] + 2 if finished else 0
            states.append(EnvSlotState(len(finished), actions[begun:cut, slot], resetting))
        second = make_vector_env(section, spec, "sync", 1, 0)
        assert np.array_equal(second.start(tuple(states)), history[cut - 1][0])
        for t in range(cut, 60):
            for ours, theirs in zip(second.step(actions[t]), history[t], strict=True):
                assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("start", [-1, 254])
def test_a_successor_repeats_the_actions_of_a_space_with_an_offset(start: int) -> None:
    """The history keeps small action indices as bytes; the offset is added to whole numbers."""
    section = EnvSection(id="tests.envs.odd_envs:Offset", num_envs=2, kwargs={"start": start})
    first, second = (make_vector_env(section, probe(section), "sync", 1, 0) for _ in range(2))
    actions = np.random.default_rng(0).integers(0, 3, (2, 2))
    first.start()
    for row in actions:
        stepped = first.step(row)
    history = ActionHistory()
    history.append(actions)
    kept = history.view()
    assert kept is not None and kept.dtype == np.uint8
    states = tuple(EnvSlotState(0, kept[:, slot]) for slot in range(2))
    assert np.array_equal(second.start(states), stepped.obs)


def test_an_env_that_does_not_reproduce_resets_next() -> None:
    env = counting(length=3)
    env.start((EnvSlotState(0, np.zeros(50, np.int64)), EnvSlotState()))
    result = env.step(np.zeros(2, np.int64))
    assert result.obs[:, 1].tolist() == [0.0, 1.0]
    assert result.obs[0, 0] == episode_seed(9, 3, 0, 1)


def test_a_state_of_another_size_is_the_envs_fault() -> None:
    section = EnvSection(id="tests.envs.odd_envs:Stateful", num_envs=1, kwargs={"form": "grows"}, recovery="state")
    env = make_vector_env(section, probe(section), "sync", 1, 0)
    env.start()
    env.states()
    env.step(np.zeros(1, np.int64))
    what = "get_state returned another size or type than after the first reset"
    with raises(EnvFault, what=f"get_state raised ValueError: {what} ({env.spec.state})"):
        env.states()
