"""V-trace against the sums of the paper, row by row, in numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.oracles import brute_force
from zmqrl.ops.returns import generalised_advantages, vtrace
from zmqrl.types import Array

GAMMA = 0.9


NAMES = ("reward", "value", "ratio", "terminated", "truncated", "valid")


def segment(deviation: float, rows: int = 12, envs: int = 8) -> dict[str, Array]:
    """Random rows with episodes that end in both ways; the row after an end is not valid."""
    random = np.random.default_rng(7)
    ends, valid = random.random((rows, envs)), np.ones((rows, envs), bool)
    terminated, truncated = ends < 0.1, (ends > 0.05) & (ends < 0.2)
    for t in range(1, rows):
        valid[t] = ~(terminated | truncated)[t - 1]
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    floats = {"reward": random.normal(size=(rows, envs)), "value": random.normal(size=(rows + 1, envs))}
    floats["ratio"] = np.exp(random.normal(0, deviation, (rows, envs)))
    flags = {"terminated": terminated, "truncated": truncated, "valid": valid}
    return {**{name: array.astype(np.float32) for name, array in floats.items()}, **flags}


@pytest.mark.parametrize("deviation", [0.0, 0.7])
@pytest.mark.parametrize("bounds", [(1.0, 1.0, 1.0), (0.8, 1.0, 1.0), (1.0, 2.0, 0.9)])
def test_targets_and_advantages(deviation: float, bounds: tuple[float, float, float]) -> None:
    """`bounds`: lambda, and those of rho and c."""
    given = segment(deviation)
    assert given["terminated"].any() and given["truncated"].any()
    found = vtrace(*(given[name] for name in NAMES), GAMMA, *bounds)
    for array, expected in zip(found, brute_force.vtrace(given, GAMMA, *bounds), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lambda_", [1.0, 0.7])
def test_with_the_acting_policy_it_is_generalised_advantage_estimation(lambda_: float) -> None:
    given = segment(0.0)
    target, advantage = vtrace(*(given[name] for name in NAMES), GAMMA, lambda_)
    flags = (given[name] for name in NAMES[3:])
    expected = generalised_advantages(given["reward"], given["value"], *flags, GAMMA, lambda_)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        target, np.where(given["valid"], expected + given["value"][:-1], 0), rtol=1e-5, atol=1e-5
    )


def test_a_vector_of_rlax() -> None:
    """Row 0 of the literal vectors of rlax's vtrace_test.py (Apache-2.0): td errors and advantages times rho."""
    behaviour = np.array([[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]])
    target = np.array([[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]])
    action, reward = np.array([0, 1, 0, 0]), np.array([-1.3, -1.3, 2.3, 42.0])
    value, discount = np.array([2.1, 1.1, -3.1, 0.0, 8.4]), np.array([0.0, 0.89, 0.85, 0.99])

    def log_prob(logits: Array) -> Array:
        return (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(4), action]

    ratio = np.exp(log_prob(target) - log_prob(behaviour))
    gamma, none = 1.0, np.zeros((1, 1), bool)
    found_target, found_advantage, surplus = np.zeros(4), np.zeros(4), 0.0
    for t in reversed(range(4)):  # one row at a time: gamma differs between rows
        reward_t = np.array([[reward[t]]])
        rows = np.array([[value[t]], [discount[t] * value[t + 1] + discount[t] * surplus]])
        found, advantage = vtrace(reward_t, rows, ratio[t : t + 1, None], none, none, ~none, gamma)
        rho = min(1.0, ratio[t])
        found_target[t], found_advantage[t] = found[0, 0] - value[t], rho * advantage[0, 0]
        surplus = found[0, 0] - value[t]
    np.testing.assert_allclose(found_target, [-1.6155143, -3.4973226, 1.8670533, 50.316002], rtol=1e-5)
    np.testing.assert_allclose(found_advantage, [-1.6155143, -3.4973226, 1.8670534, 50.316002], rtol=1e-5)


def retrace_target(
    t: int, env: int, reward: Array, action: Array, tables: Mapping[str, Array], ends: Mapping[str, Array]
) -> float:
    """Equations 3 and 4 of Munos et al. 2016 (arXiv 1606.02647) with lambda 1, up to the end of the episode.

    `tables`: `q`, `policy` and `behaviour` `[T + 1, E, A]`.
    """
    q, policy = tables["q"], tables["policy"]
    total, product = q[t, env, action[t, env]], 1.0
    for row in range(t, len(reward)):
        expected = 0.0 if ends["terminated"][row, env] else policy[row + 1, env] @ q[row + 1, env]
        total += product * (reward[row, env] + GAMMA * expected - q[row, env, action[row, env]])
        if ends["terminated"][row, env] or ends["truncated"][row, env] or row + 1 == len(reward):
            break
        ahead = (row + 1, env, action[row + 1, env])
        product *= GAMMA * min(1.0, policy[ahead] / tables["behaviour"][ahead])
    return float(total)


def test_the_advantages_are_those_of_retrace() -> None:
    """With V(x) in place of Q(x, a) and lambda 1, Retrace is V-trace with bounds 1.

    The advantage is Retrace's target minus V, and the target of V is its part `min(1, ratio)`.
    """
    random, given, actions = np.random.default_rng(7), segment(0.0), 3
    reward, value = (given[name].astype(np.float64) for name in ("reward", "value"))
    rows, envs = reward.shape
    policy, behaviour = (random.dirichlet(np.ones(actions), (rows + 1, envs)) for _ in range(2))
    action = random.integers(0, actions, (rows, envs))
    taken, acting = (np.take_along_axis(table[:rows], action[..., None], 2)[..., 0] for table in (policy, behaviour))
    target, advantage = vtrace(reward, value, taken / acting, *(given[name] for name in NAMES[3:]), GAMMA)
    tables = {"q": np.repeat(value[..., None], actions, 2), "policy": policy, "behaviour": behaviour}
    for t, env in np.argwhere(given["valid"]):
        surplus = retrace_target(t, env, reward, action, tables, given) - value[t, env]
        assert np.isclose(advantage[t, env], surplus, rtol=1e-5, atol=1e-5)
        kept = min(1.0, taken[t, env] / acting[t, env]) * surplus
        assert np.isclose(target[t, env], value[t, env] + kept, rtol=1e-5, atol=1e-5)
