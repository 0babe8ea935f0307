"""A number that is not finite as float32, as which it is trained on, is found with its slot before it is stored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zmqrl.envs.base import Floats, first_bad_slot
from zmqrl.types import Array

REWARD = np.zeros(3)


def obs(number: float, dtype: str = "float32") -> Array:
    found = np.ones((3, 2, 2), dtype)
    found[1, 0, 1] = found[2, 1, 1] = number
    return found


def opposite(number: float) -> Array:
    """Two numbers whose sum is finite."""
    found = np.ones((3, 2), "float64")
    found[1] = number, -number
    return found


@pytest.mark.parametrize(
    ("part", "rows", "words"),
    [
        ("", obs(math.nan), "the observation has NaN: "),
        ("", obs(math.inf, "float16"), "the observation has a number that is not finite in float32: "),
        ("", obs(math.inf), "the observation has a number that is not finite in float32: "),
        ("lidar", obs(-math.inf, "float64"), "part 'lidar' of the observation has a number that is not finite in "),
        ("", obs(1e39, "float64"), "the observation has a number that is not finite in float32: "),
        ("", opposite(1.7e308), "the observation has a number that is not finite in float32: "),
    ],
)
def test_of_an_observation(part: str, rows: Array, words: str) -> None:
    found = first_bad_slot((("sound", np.zeros((3, 1))), (part, rows)), REWARD)
    assert found is not None and found[0] == 1 and found[1].startswith(words)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e39])
def test_of_a_reward(reward: float) -> None:
    found = first_bad_slot((), np.array([1.0, -2.0, reward]))
    assert found == (2, f"the reward is {reward}, not finite in float32")


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("floats", "reward"),
    [((("", obs(3e38)),), REWARD), ((("", obs(6e4, "float16")),), REWARD), ((), np.array([3e38, 3e38, -3e38]))],
)
def test_large_numbers_whose_sum_is_beyond_float32_are_well(floats: Floats, reward: Array) -> None:
    assert first_bad_slot(floats, reward) is None
