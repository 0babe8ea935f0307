"""The sums of the algorithm files against loops in numpy that follow the definitions of the papers."""

import numpy as np
import pytest

from tests.strangers import r2d2_from_docs
from zmqrl.loading import torch
from zmqrl.ops.targets import n_step_targets, rescaled, unscaled

RNG = 7


def ends_of(random, rows, envs):
    """`terminated`, `truncated`, `valid` of a segment: the row after the end of an episode is not valid."""
    ends = random.random((rows, envs))
    terminated, truncated = ends < 0.1, (ends > 0.05) & (ends < 0.2)
    valid = np.ones((rows, envs), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    terminated, truncated = terminated & valid, truncated & valid
    valid[1:] = ~(terminated | truncated)[:-1]
    return terminated, truncated, valid


N_STEP = {"ops": n_step_targets, "from docs": r2d2_from_docs.n_step_returns}
RESCALED = {"ops": (rescaled, unscaled), "from docs": (r2d2_from_docs.h, r2d2_from_docs.inverse_h)}


def n_step_target(t, env, reward, terminated, truncated, value, gamma, steps):
    """Kapturowski et al. 2019, section 2.3, without rescaling: n rewards and the value of the observation after them.

    Fewer rewards at the end of the episode, which a truncation ends with the value, and at the end of the sequence.
    """
    total, discount = 0.0, 1.0
    for row in range(t, min(t + steps, len(reward))):
        total, discount = total + discount * reward[row, env], discount * gamma
        if terminated[row, env]:
            return total
        if truncated[row, env]:
            break
    return total + discount * value[row, env]


@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("function", N_STEP.values(), ids=N_STEP)
def test_n_step_returns_within_a_sequence(function, steps):
    random, length, envs, gamma = np.random.default_rng(RNG), 10, 12, 0.875  # a number that float32 has
    reward, value = random.normal(size=(2, length, envs))
    terminated, truncated, _ = ends_of(random, length, envs)
    columns = (reward, terminated, truncated, value)
    found = function(*map(torch.from_numpy, columns), gamma, steps).numpy()
    expected = [[n_step_target(t, env, *columns, gamma, steps) for env in range(envs)] for t in range(length)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
@pytest.mark.parametrize(("scale", "invert"), RESCALED.values(), ids=RESCALED)
def test_rescaled_values(scale, invert, epsilon):
    """h of Pohlen et al. 2018, section 3.2. The inverse is found by bisection, not by their formula."""
    x = np.concatenate(([0.0], np.geomspace(1e-3, 1e4, 15)))
    x = np.concatenate((-x[::-1], x))

    def h(z):
        return np.sign(z) * (np.sqrt(abs(z) + 1) - 1) + epsilon * z

    np.testing.assert_allclose(scale(torch.from_numpy(x), epsilon).numpy(), h(x), atol=1e-12)
    y = np.linspace(-150, 150, 31)
    low, high = np.full(31, -1e7), np.full(31, 1e7)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = np.where(h(middle) < y, middle, low), np.where(h(middle) < y, high, middle)
    np.testing.assert_allclose(invert(torch.from_numpy(y), epsilon).numpy(), low, rtol=1e-9, atol=1e-9)
