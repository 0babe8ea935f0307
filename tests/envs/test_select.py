"""`zmqrl.envs.select:Select` shows the entries that it is given."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from zmqrl.envs.select import Select


def test_it_shows_the_entries() -> None:
    env = Select(gym.make("CartPole-v1"), entries=[0, 2])
    whole = gym.make("CartPole-v1")
    assert env.observation_space.shape == (2,)
    (found, _), (expected, _) = env.reset(seed=3), whole.reset(seed=3)
    np.testing.assert_array_equal(found, expected[[0, 2]])
    np.testing.assert_array_equal(env.step(1)[0], whole.step(1)[0][[0, 2]])
    assert env.observation_space.contains(found)


@pytest.mark.parametrize("entries", [[], [4], [-1]])
def test_entries_must_be_there(entries: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be indices from 0 to 3"):
        Select(gym.make("CartPole-v1"), entries)


def test_only_vectors_have_entries() -> None:
    with pytest.raises(ValueError, match="a Box with one axis"):
        Select(gym.make("Blackjack-v1"), [0])
