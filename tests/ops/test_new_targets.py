"""Targets and losses against frozen numbers, and against slow definitions, term by term."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zmqrl.ops.policies import (
    categorical,
    gaussian,
    masked,
    mean_and_log_std,
    multi_categorical,
    tanh_gaussian,
    tanh_gaussian_log_prob,
)
from zmqrl.ops.returns import generalised_advantages, q_lambda_returns
from zmqrl.ops.targets import quantile_huber
from zmqrl.types import Array

ORACLES = Path(__file__).parents[1] / "oracles"
STEPS, ENVS, GAMMA = 9, 6, 0.9


def oracle(name: str) -> Any:
    return json.loads((ORACLES / f"{name}.json").read_text())


def segment(seed: int) -> dict[str, Array]:
    """Rows with NEXT_STEP autoreset: the row after one that ended is invalid."""
    rng = np.random.default_rng(seed)
    ended = rng.random((STEPS, ENVS)) < 0.25
    valid = np.ones((STEPS, ENVS), bool)
    for t in range(1, STEPS):
        valid[t] = ~ended[t - 1]
        ended[t] &= valid[t]
    truncated = ended & (rng.random((STEPS, ENVS)) < 0.5)
    reward = np.where(valid, rng.normal(size=(STEPS, ENVS)), 0.0).astype(np.float32)
    best = rng.normal(size=(STEPS, ENVS)).astype(np.float32)
    return {
        "reward": reward,
        "next_best": best,
        "terminated": ended & ~truncated,
        "truncated": truncated,
        "valid": valid,
    }


def slow_return(s: dict[str, Array], t: int, e: int, lambda_: float) -> float:
    if s["terminated"][t, e]:
        return float(s["reward"][t, e])
    best = float(s["next_best"][t, e])
    if s["truncated"][t, e] or t == STEPS - 1:
        return float(s["reward"][t, e]) + GAMMA * best
    return float(s["reward"][t, e]) + GAMMA * ((1 - lambda_) * best + lambda_ * slow_return(s, t + 1, e, lambda_))


@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_q_lambda_returns(seed: int, lambda_: float) -> None:
    s = segment(seed)
    returns = q_lambda_returns(**s, gamma=GAMMA, lambda_=lambda_)
    for t in range(STEPS):
        for e in range(ENVS):
            expected = slow_return(s, t, e, lambda_) if s["valid"][t, e] else 0.0
            assert returns[t, e] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("lambda_", ["0.0", "0.65", "1.0"])
def test_q_lambda_returns_are_the_frozen_ones(lambda_: str) -> None:
    given = oracle("q_lambda")
    names = ("reward", "next_best", "terminated", "truncated", "valid")
    found = q_lambda_returns(*(np.array(given[name]) for name in names), given["gamma"], float(lambda_))
    np.testing.assert_allclose(found, given["returns"][lambda_], atol=1e-6)


@pytest.mark.parametrize("case", oracle("lambda_returns")["cases"])
def test_lambda_returns_are_those_of_rlax(case: dict[str, Any]) -> None:
    """Of PQN, and of PPO's values. Rewards and values times the product of all discounts before: then gamma is 1."""
    reward, discount, value, expected = (np.array(case[n])[:, None] for n in ("reward", "discount", "value", "returns"))
    product = np.cumprod(np.concatenate((np.ones((1, 1)), discount)), axis=0)
    reward, value, expected = reward * product[:-1], value * product[1:], expected * product[:-1]
    no = np.zeros(reward.shape, bool)
    returns = q_lambda_returns(reward, value, no, no, ~no, 1.0, case["lambda"])
    np.testing.assert_allclose(returns, expected, rtol=1e-5)
    values = np.concatenate((np.full((1, 1), 7.0), value))
    advantage = generalised_advantages(reward, values, no, no, ~no, 1.0, case["lambda"])
    np.testing.assert_allclose(advantage + values[:-1], expected, rtol=1e-5)


def test_q_lambda_returns_refuse_other_shapes() -> None:
    s = segment(0)
    with pytest.raises(ValueError, match="must have the shape of reward"):
        q_lambda_returns(**{**s, "next_best": s["next_best"][1:]}, gamma=GAMMA, lambda_=0.5)


def test_quantile_huber() -> None:
    rng = np.random.default_rng(1)
    quantiles, target = (rng.normal(size=(4, n)) * 2 for n in (5, 3))
    found = quantile_huber(torch.from_numpy(quantiles), torch.from_numpy(target)).numpy()
    for row in range(4):
        expected = 0.0
        for i, q in enumerate(quantiles[row]):
            for y in target[row]:
                u = y - q
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                expected += abs((i + 0.5) / 5 - (u < 0)) * huber / 3
        assert found[row] == pytest.approx(expected, rel=1e-12)


def test_quantile_huber_is_the_frozen_one() -> None:
    given = oracle("quantile_huber")
    for case, loss in zip(given["cases"], given["losses"], strict=True):
        quantiles, target = (torch.tensor([case[name]], dtype=torch.float64) for name in ("quantiles", "target"))
        assert float(quantile_huber(quantiles, target)) == pytest.approx(loss, rel=1e-12)


def test_masked_choices_are_the_frozen_ones() -> None:
    given = oracle("choices")
    logits = masked(torch.tensor(given["logits"], dtype=torch.float64), torch.tensor(given["mask"]))
    one, several = (torch.tensor(given[name]) for name in ("one", "several"))
    found = {"one": categorical(logits, one), "several": multi_categorical(logits, several, tuple(given["sizes"]))}
    for name, tensors in found.items():
        for what, tensor in zip(("log_prob", "entropy"), tensors, strict=True):
            np.testing.assert_allclose(tensor.numpy(), given[f"{name}_{what}"], rtol=1e-10, atol=1e-12, err_msg=name)


def test_log_probabilities_are_those_of_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, action = torch.randn(6, 5, generator=generator), torch.randint(0, 2, (6,), generator=generator)
    other = torch.randint(0, 3, (6,), generator=generator)
    one = torch.distributions.Categorical(logits=logits)
    for found, expected in zip(categorical(logits, other), (one.log_prob(other), one.entropy()), strict=True):
        torch.testing.assert_close(found, expected)
    parts = [torch.distributions.Categorical(logits=part) for part in logits.split([2, 3], 1)]
    pair = torch.stack((action, other), 1)
    expected = sum(part.log_prob(a) for part, a in zip(parts, pair.unbind(1), strict=True))
    found, entropy = multi_categorical(logits, pair, (2, 3))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))
    log_std, continuous = torch.randn(5, generator=generator), torch.randn(6, 5, generator=generator)
    normal = torch.distributions.Normal(logits, log_std.exp())
    found, entropy = gaussian(logits, log_std, continuous)
    torch.testing.assert_close(found, normal.log_prob(continuous).sum(1))
    torch.testing.assert_close(entropy, normal.entropy().sum(1))


def test_a_masked_action_has_no_probability_and_no_gradient() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    log_prob, entropy = categorical(masked(logits, mask), torch.tensor([0, 2, 3]))
    (grad,) = torch.autograd.grad((log_prob + entropy).sum(), logits)
    assert torch.isfinite(grad).all() and not grad[mask == 0].any()
    log_prob, entropy = log_prob.detach(), entropy.detach()
    assert float(log_prob[1]) == 0.0 and float(entropy[1]) == pytest.approx(0.0, abs=1e-6)


def test_the_density_of_a_squashed_gaussian() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(50, 4, generator=generator).double()
    noise = torch.randn(50, 2, generator=generator).double()
    action, log_prob = tanh_gaussian(outputs, noise)
    mean, log_std = outputs[:, :2], outputs[:, 2:].clamp(-20, 2)
    before = mean + log_std.exp() * noise
    torch.testing.assert_close(action, torch.tanh(before))
    near = before.abs().amax(1) < 3  # further out the inverse of tanh loses its digits
    base = torch.distributions.Normal(mean[near], log_std[near].exp())
    tanh = torch.distributions.transforms.TanhTransform(cache_size=1)
    squashed = torch.distributions.TransformedDistribution(base, tanh)
    expected = squashed.log_prob(action[near]).sum(1)
    torch.testing.assert_close(log_prob[near], expected, rtol=1e-5, atol=1e-5)
    assert int(near.sum()) > 20


def test_the_density_of_stored_squashed_actions_is_that_of_the_actions_that_were_drawn() -> None:
    generator = torch.Generator().manual_seed(2)
    outputs, noise = torch.randn(500, 4, generator=generator), torch.randn(500, 2, generator=generator)
    action, log_prob = tanh_gaussian(outputs, noise)
    near = action.abs().amax(1) < 0.999
    assert int(near.sum()) > 300
    found = tanh_gaussian_log_prob(outputs, action)
    torch.testing.assert_close(found[near], log_prob[near], rtol=1e-3, atol=1e-3)
    mean, log_std = mean_and_log_std(outputs[near].double())
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.transforms.TanhTransform()
    )
    expected = squashed.log_prob(action[near].double()).sum(1)
    torch.testing.assert_close(tanh_gaussian_log_prob(outputs[near].double(), action[near].double()), expected)
    at_the_bound = tanh_gaussian_log_prob(outputs.requires_grad_(), action.sign())
    (grad,) = torch.autograd.grad(at_the_bound.sum(), outputs)
    assert torch.isfinite(at_the_bound).all() and torch.isfinite(grad).all()


def test_a_gaussian_with_a_deviation_of_the_state_is_torchs() -> None:
    outputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(3)) * 2
    mean, log_std = mean_and_log_std(outputs)
    assert (outputs[:, 2:] > 2).any() and torch.equal(log_std, outputs[:, 2:].clamp(max=2))
    action = torch.randn(6, 2, generator=torch.Generator().manual_seed(4))
    normal = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    log_prob, entropy = gaussian(mean, log_std, action)
    torch.testing.assert_close(log_prob, normal.log_prob(action), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, normal.entropy())


def test_the_log_std_of_a_squashed_gaussian_is_bounded() -> None:
    outputs = torch.tensor([[0.0, 50.0], [0.0, -50.0]], requires_grad=True)
    action, log_density = tanh_gaussian(outputs, torch.ones(2, 1))
    action = action.detach()
    assert math.isclose(float(action[0]), math.tanh(math.exp(2.0)), abs_tol=1e-6) and abs(float(action[1])) < 1e-6
    (grad,) = torch.autograd.grad(log_density.sum(), outputs)
    assert torch.isfinite(grad).all()
