"""The sums of the algorithm files against loops in numpy that follow the definitions of the papers."""

import numpy as np
import pytest

from tests.strangers.c51 import project
from tests.strangers.impala import vtrace
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


def vtrace_target(t, env, gamma, reward, value, ratio, terminated, truncated, valid):
    """`v_t` by the sum of equation 1 of Espeholt et al. 2018, which ends with the episode or the segment."""
    total, traces, discount = value[t, env], 1.0, 1.0
    for row in range(t, len(reward)):
        if not valid[row, env]:
            break
        following = 0.0 if terminated[row, env] else value[row + 1, env]
        delta = min(1.0, ratio[row, env]) * (reward[row, env] + gamma * following - value[row, env])
        total += discount * traces * delta
        if terminated[row, env] or truncated[row, env]:
            break
        traces, discount = traces * min(1.0, ratio[row, env]), discount * gamma
    return total


@pytest.mark.parametrize("ratio_deviation", [0.0, 0.7])
def test_vtrace(ratio_deviation):
    random, rows, envs, gamma = np.random.default_rng(RNG), 12, 8, 0.9
    reward, value = random.normal(size=(rows, envs)), random.normal(size=(rows + 1, envs))
    ratio = np.exp(random.normal(0, ratio_deviation, (rows, envs)))
    ends = random.random((rows, envs))
    terminated, truncated = ends < 0.1, (ends > 0.05) & (ends < 0.2)
    valid = np.ones((rows, envs), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    terminated, truncated = terminated & valid, truncated & valid
    valid[1:] = ~(terminated | truncated)[:-1]
    columns = (reward, value, ratio, terminated, truncated, valid)
    target, advantage = vtrace(*columns, gamma)
    for t, env in np.argwhere(valid):
        assert np.isclose(target[t, env], vtrace_target(t, env, gamma, *columns))
        is_last = t == rows - 1 or terminated[t, env] or truncated[t, env]
        following = value[t + 1, env] if is_last else vtrace_target(t + 1, env, gamma, *columns)
        bootstrap = 0.0 if terminated[t, env] else gamma * following
        assert np.isclose(advantage[t, env], reward[t, env] + bootstrap - value[t, env])


def test_vtrace_of_the_acting_policy_is_the_discounted_return():
    """With ratios of 1 and without ends, v_0 is the n-step return (section 4.1)."""
    reward, value, none = np.ones((3, 1)), np.array([[5.0], [5.0], [5.0], [8.0]]), np.zeros((3, 1), bool)
    target, _ = vtrace(reward, value, np.ones((3, 1)), none, none, ~none, 0.5)
    assert np.allclose(target[0], 1 + 0.5 + 0.25 + 0.125 * 8)
