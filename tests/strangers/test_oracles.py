"""The sums of the algorithm files against loops in numpy that follow the definitions of the papers."""

import numpy as np
import pytest

from tests.strangers import r2d2, r2d2_from_docs
from tests.strangers.c51 import project
from tests.strangers.iqn import quantile_huber
from zmqrl.loading import torch

RNG = 7


def c51_projection(p, returns, discount, support):
    """Algorithm 1 of Bellemare et al. 2017; a moved atom that lies on an atom keeps its whole probability."""
    low, high, step = support[0], support[-1], support[1] - support[0]
    found = np.zeros_like(p)
    for row in range(len(p)):
        for atom, z in enumerate(support):
            place = (np.clip(returns[row] + discount[row] * z, low, high) - low) / step
            lower, upper = int(np.floor(place)), int(np.ceil(place))
            if lower == upper:
                found[row, lower] += p[row, atom]
            else:
                found[row, lower] += p[row, atom] * (upper - place)
                found[row, upper] += p[row, atom] * (place - lower)
    return found


def test_the_projection_of_c51():
    random, support = np.random.default_rng(RNG), np.linspace(-2, 2, 9)
    p = random.dirichlet(np.ones(9), 40)
    returns, discount = random.normal(size=40), random.choice([0.0, 0.9, 1.0], 40)
    returns[:4], discount[:4] = (0.5, 0.0, 9.0, -9.0), 1.0
    expected = c51_projection(p, returns, discount, support)
    found = project(*(torch.from_numpy(array) for array in (p, returns, discount, support))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.allclose(found.sum(1), 1)


def test_the_quantile_huber_loss():
    """Equation 10 of Dabney et al. 2018 (QR-DQN) with kappa 1, summed over quantiles, as a mean over targets."""
    random = np.random.default_rng(RNG)
    q, tau, target = random.normal(0, 2, (6, 5)), random.random((6, 5)), random.normal(0, 2, (6, 4))
    expected = np.zeros(6)
    for row in range(6):
        for i in range(5):
            for j in range(4):
                u = target[row, j] - q[row, i]
                huber = u**2 / 2 if abs(u) <= 1 else abs(u) - 0.5
                expected[row] += abs(tau[row, i] - (u < 0)) * huber / 4
    tensors = (torch.from_numpy(array) for array in (q, tau, target))
    np.testing.assert_allclose(quantile_huber(*tensors).numpy(), expected, atol=1e-12)


def ends_of(random, rows, envs):
    """`terminated`, `truncated`, `valid` of a segment: the row after the end of an episode is not valid."""
    ends = random.random((rows, envs))
    terminated, truncated = ends < 0.1, (ends > 0.05) & (ends < 0.2)
    valid = np.ones((rows, envs), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    terminated, truncated = terminated & valid, truncated & valid
    valid[1:] = ~(terminated | truncated)[:-1]
    return terminated, truncated, valid


N_STEP = {"r2d2": r2d2.n_step_targets, "from docs": r2d2_from_docs.n_step_returns}
RESCALED = {"r2d2": (r2d2.rescaled, r2d2.unscaled), "from docs": (r2d2_from_docs.h, r2d2_from_docs.inverse_h)}


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
