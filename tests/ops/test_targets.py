"""Targets of sequences against a loop over the rewards of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zmqrl.ops.targets import n_step_targets, rescaled, unscaled

GAMMA = 0.9


def walked(reward: Any, terminated: Any, truncated: Any, value: Any, n: int) -> Any:
    """Equation 7.1 of Sutton & Barto 2018, row by row; what follows the last row that counts is its value."""
    steps, batch = reward.shape
    found = np.zeros((steps, batch))
    for t in range(steps):
        for b in range(batch):
            discount = 1.0
            for last in range(t, min(t + n, steps)):
                found[t, b] += discount * reward[last, b]
                discount *= GAMMA
                if terminated[last, b] or truncated[last, b]:
                    break
            found[t, b] += 0.0 if terminated[last, b] else discount * value[last, b]
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("end_share", [0.0, 0.2, 0.8])
def test_it_is_the_sum_of_rewards_and_the_value_after_them(n: int, end_share: float) -> None:
    rng, shape = np.random.default_rng(n), (7, 40)
    reward, value = rng.normal(size=(2, *shape))
    ended, cut = rng.random(shape) < end_share, rng.random(shape) < 0.5
    columns = reward, ended & ~cut, ended & cut, value
    found = n_step_targets(*map(torch.from_numpy, columns), GAMMA, n)
    np.testing.assert_allclose(found.numpy(), walked(*columns, n), rtol=1e-12)


def test_no_value_is_selected_by_a_product() -> None:
    """What is not finite has no effect after a termination, and beyond the end of an episode."""
    inf, no = torch.tensor([[torch.inf], [torch.inf], [2.0]]), torch.zeros(3, 1, dtype=torch.bool)
    ends = torch.tensor([[True], [True], [False]])
    reward = torch.tensor([[1.0], [2.0], [3.0]])
    assert n_step_targets(reward, ends, no, inf, 0.5, 3).flatten().tolist() == [1.0, 2.0, 4.0]
    last = torch.tensor([[5.0], [6.0], [2.0]])
    assert n_step_targets(reward, no, ends, last, 0.5, 3).flatten().tolist() == [3.5, 5.0, 4.0]


def test_other_shapes_and_numbers_of_rewards_are_refused() -> None:
    reward, flag = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError):
        n_step_targets(reward, flag, flag, torch.zeros(4, 2), GAMMA, 2)
    with pytest.raises(ValueError):
        n_step_targets(reward, flag, flag, reward, GAMMA, 0)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_rescaled_values(epsilon: float) -> None:
    """h of Pohlen et al. 2018, section 3.2. The inverse is found by bisection, not by their formula."""
    x = np.concatenate(([0.0], np.geomspace(1e-3, 1e4, 15)))
    x = np.concatenate((-x[::-1], x))

    def h(z: Any) -> Any:
        return np.sign(z) * (np.sqrt(abs(z) + 1) - 1) + epsilon * z

    np.testing.assert_allclose(rescaled(torch.from_numpy(x), epsilon).numpy(), h(x), atol=1e-12)
    y = np.linspace(-150, 150, 31)
    low, high = np.full(31, -1e7), np.full(31, 1e7)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = np.where(h(middle) < y, middle, low), np.where(h(middle) < y, high, middle)
    np.testing.assert_allclose(unscaled(torch.from_numpy(y), epsilon).numpy(), low, rtol=1e-9, atol=1e-9)
