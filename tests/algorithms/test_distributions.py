"""Targets and losses of the kinds of deep Q-learning against loops in numpy that follow the papers' definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.driver import DISCRETE, env_spec
from tests.support.raising import raises
from zmqrl.algorithms.base import LearnerContext
from zmqrl.algorithms.c51 import C51, C51Config
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.iqn import COSINE, IQN, IQNConfig
from zmqrl.algorithms.q_learning.base import MunchausenSection, PrioritisedSection
from zmqrl.algorithms.q_learning.learner import TRAINED, VALUE, QLearner, munchausen
from zmqrl.algorithms.qrdqn import QRDQN, QRDQNConfig
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import PRIORITY
from zmqrl.networks.initial import parameter_shapes
from zmqrl.ops.targets import project, quantile_huber
from zmqrl.types import Array

ROWS, ATOMS, SEED = 6, 5, 7
SUPPORT = np.linspace(-2.0, 3.0, ATOMS)
SETTINGS = MunchausenSection(alpha=0.8, temperature=0.2, clip=0.3)
SHARED: dict[str, Any] = {"prioritised": PrioritisedSection(), "batch_size": ROWS}
KINDS: dict[str, tuple[Any, Any]] = {
    "dqn": (DQN, DQNConfig(**SHARED)),
    "qrdqn": (QRDQN, QRDQNConfig(quantiles=ATOMS, **SHARED)),
    "c51": (C51, C51Config(atoms=ATOMS, low=-2.0, high=3.0, **SHARED)),
}


def log_softmax(x: Array) -> Array:
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def projected(p: Array, reward: float, discount: float, support: Array) -> Array:
    """Algorithm 1 of Bellemare et al. 2017; a moved atom that lies on an atom keeps its whole probability."""
    found, distance = np.zeros_like(p), support[1] - support[0]
    for atom, z in enumerate(support):
        place = (np.clip(reward + discount * z, support[0], support[-1]) - support[0]) / distance
        lower, upper = int(np.floor(place)), int(np.ceil(place))
        if lower == upper:
            found[lower] += p[atom]
        else:
            found[lower] += p[atom] * (upper - place)
            found[upper] += p[atom] * (place - lower)
    return found


def huber_sum(quantiles: Array, levels: Array, target: Array) -> float:
    """Equation 10 of Dabney et al. 2018 (QR-DQN) with kappa 1: a sum over quantiles, a mean over targets."""
    total = 0.0
    for quantile, level in zip(quantiles, levels, strict=True):
        for one in target:
            u = one - quantile
            total += abs(level - (u < 0)) * (u**2 / 2 if abs(u) <= 1 else abs(u) - 0.5) / len(target)
    return float(total)


def loss_of(kind: str, outputs: Array, target: Array) -> float:
    """Loss of one row with outputs `[K]` of the action taken."""
    if kind == "dqn":
        error = abs(outputs[0] - target[0])
        return float(error**2 / 2 if error <= 1 else error - 0.5)
    if kind == "qrdqn":
        return huber_sum(outputs, (np.arange(ATOMS) + 0.5) / ATOMS, target)
    log_p = log_softmax(outputs)
    return float(sum(m * (np.log(m) - one) for m, one in zip(target, log_p, strict=True) if m > 0))


def returns_of(kind: str, table: Array) -> tuple[Array, Array]:
    """Estimates `[n, K]` of returns and q values `[n]` of the outputs `[n, K]`."""
    if kind != "c51":
        return table, table.mean(1)
    p = np.exp(np.stack([log_softmax(logits) for logits in table]))
    return p, p @ SUPPORT


def target_of(kind: str, tables: dict[str, Array], action: int, reward: float, discount: float, config: Any) -> Array:
    """The target `[K]` of one row; tables `[n, K]` of the networks for observation and next observation."""
    following, q = returns_of(kind, tables["next_target"])
    if config.double:
        q = returns_of(kind, tables["next_online"])[1]
    policy = np.eye(len(q))[q.argmax()]
    if config.munchausen is not None:
        temperature = config.munchausen.temperature
        log_taken = log_softmax(returns_of(kind, tables["target"])[1] / temperature)[action]
        log_policy = log_softmax(q / temperature)
        policy = np.exp(log_policy)
        reward += config.munchausen.alpha * max(temperature * log_taken, -config.munchausen.clip)
        reward += discount * sum(-temperature * p * log_p for p, log_p in zip(policy, log_policy, strict=True))
    mixture = sum(p * row for p, row in zip(policy, following, strict=True))
    if kind == "c51":
        return projected(np.asarray(mixture), reward, discount, SUPPORT)
    return np.asarray(reward + discount * mixture)


def learner_with(algorithm: Any, random: np.random.Generator) -> tuple[QLearner, dict[str, Array], dict[str, Array]]:
    """A learner, its weights, and those of its target network, all at random."""
    shapes = parameter_shapes(algorithm.network())
    online, target = (
        {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(2)
    )
    learner = algorithm.learner(LearnerContext(online))
    assert isinstance(learner, QLearner)
    learner.load_state(online, {**learner.state(), **{f"target.{name}": array for name, array in target.items()}})
    return learner, online, target


def batch_of(random: np.random.Generator) -> dict[str, Array]:
    """Observation i is the i-th unit vector, its next one the vector `ROWS + i`."""
    obs, next_obs = np.eye(2 * ROWS, dtype=np.float32).reshape(2, ROWS, -1)
    return {
        "obs": obs,
        "next_obs": next_obs,
        "action": random.integers(0, DISCRETE.n, ROWS),
        "n_step_return": random.normal(0, 1, ROWS),
        "discount": np.array([0.0, 0.9, 0.9, 1.0, 0.5, 0.9]),
        "weight": random.uniform(0.5, 1.0, ROWS),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("section", [None, SETTINGS])
def test_one_update(kind: str, double: bool, section: MunchausenSection | None) -> None:
    made, config = KINDS[kind]
    config = type(config)(**{**vars(config), "double": double, "munchausen": section})
    algorithm, random = (
        made(config, NetworkSection(hidden=()), env_spec(DISCRETE, 2 * ROWS), 16, 1),
        np.random.default_rng(SEED),
    )
    learner, online, target = learner_with(algorithm, random)
    batch = batch_of(random)

    def table(weights: dict[str, Array], column: int) -> Array:
        flat = weights["q.0.weight"][:, column].astype(np.float64) + weights["q.0.bias"]
        return flat.reshape(DISCRETE.n, -1)

    expected = []
    for row in range(ROWS):
        tables = {"target": table(target, row), "next_target": table(target, ROWS + row)}
        tables["next_online"] = table(online, ROWS + row)
        action, numbers = int(batch["action"][row]), (float(batch[n][row]) for n in ("n_step_return", "discount"))
        aim = target_of(kind, tables, action, *numbers, config)
        expected.append(loss_of(kind, table(online, row)[action], aim))
    results = learner.run({name: learner.tensor(column) for name, column in batch.items()}, {"q": 1e-3})
    assert float(results["loss/q"]) == pytest.approx((batch["weight"] * expected).mean(), rel=1e-4)
    if kind != "dqn":  # the priority of DQN is the error, in test_priorities
        np.testing.assert_allclose(results[PRIORITY].numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("noisy", [False, True])
def test_one_update_of_implicit_quantiles(noisy: bool) -> None:
    """Equations 3 and 4 of Dabney et al. 2018 (IQN), with fractions and noise of the batch."""
    config = IQNConfig(quantiles=3, acting_quantiles=4, cosines=5, noisy=noisy, **SHARED)
    algorithm, random = (
        IQN(config, NetworkSection(hidden=()), env_spec(DISCRETE, 2 * ROWS), 16, 1),
        np.random.default_rng(SEED),
    )
    learner, online, target = learner_with(algorithm, random)
    batch = {**batch_of(random), **{name: noise.numpy() for name, noise in learner.draw_noise(0, ROWS).items()}}
    last = algorithm.network().tower("q")[-1].name
    assert {name.partition(".")[2] for name in batch if "noise." in name} == {COSINE, *([last] if noisy else [])}

    def quantiles(weights: dict[str, Array], column: int, row: int, use: str) -> Array:
        """`[n, K]` of one observation."""
        weight, bias, found = weights[f"{last}.weight"], weights[f"{last}.bias"], []
        if noisy:
            drawn = batch[f"{use}.{last}"][row]
            left, right = np.split(np.sign(drawn) * np.sqrt(np.abs(drawn)), [2 * ROWS])
            weight = weight + weights[f"{last}.weight_sigma"] * np.outer(right, left)
            bias = bias + weights[f"{last}.bias_sigma"] * right
        for tau in batch[f"{use}.{COSINE}"][row]:
            cosines = np.cos(np.pi * np.arange(5) * tau)
            embedding = np.maximum(weights[f"{COSINE}.weight"] @ cosines + weights[f"{COSINE}.bias"], 0)
            found.append(weight @ (np.eye(2 * ROWS)[column] * embedding) + bias)
        return np.stack(found, 1)

    expected = []
    for row in range(ROWS):
        following, action = quantiles(target, ROWS + row, row, VALUE), int(batch["action"][row])
        aim = batch["n_step_return"][row] + batch["discount"][row] * following[following.mean(1).argmax()]
        levels = batch[f"{TRAINED}.{COSINE}"][row]
        expected.append(huber_sum(quantiles(online, row, row, TRAINED)[action], levels, aim))
    results = learner.run({name: learner.tensor(column) for name, column in batch.items()}, {"q": 1e-3})
    np.testing.assert_allclose(results[PRIORITY].numpy(), expected, rtol=1e-4, atol=1e-6)
    assert float(results["loss/q"]) == pytest.approx((batch["weight"] * expected).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [(0.5, 0.9, [0.1, 0.4, 0.5]), (0.3, 0.0, [0, 0.7, 0.3]), (1.0, 0.0, [0, 0, 1]), (-9.0, 1.0, [1, 0, 0])],
)
def test_a_projection_by_hand(reward: float, discount: float, expected: list[float]) -> None:
    p, support = torch.tensor([[0.25, 0.5, 0.25]]), torch.tensor([-1.0, 0.0, 1.0])
    found = project(p, torch.tensor([reward]), torch.tensor([discount]), support)
    np.testing.assert_allclose(found.numpy()[0], expected, atol=1e-6)
    np.testing.assert_allclose(projected(p.numpy()[0], reward, discount, support.numpy()), expected, atol=1e-6)


def test_the_quantile_huber_loss_at_given_levels() -> None:
    random = np.random.default_rng(SEED)
    quantiles, levels, target = random.normal(0, 2, (6, 5)), random.random((6, 5)), random.normal(0, 2, (6, 4))
    found = quantile_huber(*(torch.from_numpy(array) for array in (quantiles, target, levels)))
    expected = [huber_sum(*row) for row in zip(quantiles, levels, target, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_the_terms_of_munchausen_stay_finite_for_large_values() -> None:
    """At temperature 0.03 a difference of 3 is e^100 in a naive softmax."""
    q = torch.tensor([[0.0, 3e4], [5.0, 5.0]])
    bonus, policy, entropy = munchausen(MunchausenSection(), q, torch.tensor([0, 0]), q)
    np.testing.assert_allclose(bonus.numpy(), [-0.9, 0.9 * 0.03 * np.log(0.5)], rtol=1e-5)
    np.testing.assert_allclose(policy.numpy(), [[0, 1], [0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(entropy.numpy(), [0, 0.03 * np.log(2)], atol=1e-6)


def test_munchausen_has_no_hand_written_gradient() -> None:
    def of(**options: Any) -> tuple[str, ...]:
        return DQN(DQNConfig(**options), NetworkSection(hidden=(8,)), env_spec(DISCRETE, 3), 16, 1).executors

    assert of() == ("manual", "eager", "compiled")
    assert of(munchausen=MunchausenSection()) == ("eager", "compiled")


def test_atoms_in_the_wrong_order_are_refused() -> None:
    algorithm = C51(C51Config(low=1.0, high=1.0), NetworkSection(hidden=(8,)), env_spec(DISCRETE, 3), 16, 1)
    with raises(ConfigError, key=("algorithm", "high"), value="1"):
        algorithm.check("sync", 1, ReplaySection())
