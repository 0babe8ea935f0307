"""SAC with discrete actions, TQC, CQL and DDPG: losses and steps are those of the papers, computed in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.algorithms.linear import BOX, DISCRETE, RATE, ROWS, Linear, linear, scaled, softmax, squashed, with_action
from tests.support.raising import raises
from zmqrl.algorithms.cql import CQL
from zmqrl.algorithms.ddpg import DDPG
from zmqrl.algorithms.sac import SAC
from zmqrl.algorithms.tqc import TQC
from zmqrl.config.sections import ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.types import Array

Weights = Mapping[str, Array]
CLOSE: Mapping[str, Any] = {"rel": 1e-4, "abs": 1e-5}
Q = ("q1", "q2")


class Discrete:
    """Equations 10 to 12 of Christodoulou 2019, row by row."""

    def __init__(self, case: Linear) -> None:
        self.batch, self.alpha = case.batch, float(np.exp(case.now["log_temperature"]))
        self.target = self._target(case.now)

    def _target(self, w: Weights) -> Array:
        """Of the critics; constant while they move."""
        found = []
        for row in range(ROWS):
            obs = self.batch["next_obs"][row]
            p, value = softmax(linear(w, "actor", obs)), 0.0
            lower = [min(q) for q in zip(*(linear(w, f"target.{name}", obs) for name in Q), strict=True)]
            for action in range(DISCRETE.n):
                value += p[action] * (lower[action] - self.alpha * np.log(p[action]))
            found.append(self.batch["n_step_return"][row] + self.batch["discount"][row] * value)
        return np.array(found)

    def critic(self, w: Weights) -> float:
        rows, action = np.arange(ROWS), self.batch["action"]
        errors = [linear(w, name, self.batch["obs"])[rows, action] - self.target for name in Q]
        return float(sum(0.5 * (error**2).mean() for error in errors))

    def actor(self, w: Weights) -> float:
        p = softmax(linear(w, "actor", self.batch["obs"]))
        lower = np.minimum(*(linear(w, name, self.batch["obs"]) for name in Q))
        return float((p * (self.alpha * np.log(p) - lower)).sum(1).mean())

    def entropy(self, w: Weights) -> float:
        p = softmax(linear(w, "actor", self.batch["obs"]))
        return float(-(p * np.log(p)).sum(1).mean())


def test_sac_with_discrete_actions() -> None:
    case = Linear(SAC, DISCRETE)
    paper, w = Discrete(case), case.now
    metrics = case.run()[0]
    assert metrics["loss/q"] == pytest.approx(paper.critic(w), **CLOSE)
    assert metrics["loss/actor"] == pytest.approx(paper.actor(w), **CLOSE)
    assert metrics["entropy"] == pytest.approx(paper.entropy(w), **CLOSE)
    assert metrics["temperature"] == pytest.approx(paper.alpha, **CLOSE)
    case.moves_down("critics", paper.critic, *Q)
    case.moves_down("actor", paper.actor, "actor")


@pytest.mark.parametrize("given", ["auto", 0.1, 1.3])
def test_the_temperature_rises_where_the_entropy_is_below_its_target(given: float | str) -> None:
    """Equation 11: the loss is alpha (entropy - target), here of the logarithm of alpha."""
    case = Linear(SAC, DISCRETE, target_entropy=given)
    target = 0.98 * np.log(DISCRETE.n) if given == "auto" else given
    rises = Discrete(case).entropy(case.now) < target
    moved = case.run("log_temperature")[1]["log_temperature"]
    assert moved == pytest.approx(RATE if rises else -RATE, rel=1e-3)


class Truncated:
    """Equations 10 to 14 of Kuznetsov et al. 2020, atom by atom."""

    def __init__(self, case: Linear) -> None:
        self.batch, self.config, w = case.batch, case.algorithm.config, case.now
        self.critics, self.alpha = (
            [f"q{n + 1}" for n in range(self.config.critics)],
            float(np.exp(w["log_temperature"])),
        )
        self.targets = [self._target(w, row) for row in range(ROWS)]

    def _target(self, w: Weights, row: int) -> list[float]:
        obs, config = self.batch["next_obs"][row], self.config
        action, log_prob = squashed(linear(w, "actor", obs), self.batch["next_noise"][row])
        atoms = sorted(z for name in self.critics for z in linear(w, f"target.{name}", with_action(obs, action)))
        kept = atoms[: len(atoms) - config.dropped * config.critics]
        reward, discount = self.batch["n_step_return"][row], self.batch["discount"][row]
        return [reward + discount * (atom - self.alpha * log_prob) for atom in kept]

    def critic(self, w: Weights) -> float:
        total, stored = 0.0, scaled(self.batch["action"])
        for name in self.critics:
            for row, targets in enumerate(self.targets):
                atoms = linear(w, name, with_action(self.batch["obs"][row], stored[row]))
                for i, atom in enumerate(atoms):
                    level = (2 * i + 1) / (2 * len(atoms))
                    for target in targets:
                        u = target - atom
                        huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                        total += abs(level - (u < 0)) * huber / (len(targets) * len(atoms) * ROWS)
        return total

    def actor(self, w: Weights) -> float:
        obs = self.batch["obs"]
        action, log_prob = squashed(linear(w, "actor", obs), self.batch["noise"])
        mean = np.mean([linear(w, name, with_action(obs, action)).mean(1) for name in self.critics], axis=0)
        return float((self.alpha * log_prob - mean).mean())


@pytest.mark.parametrize("settings", [{}, {"critics": 3, "quantiles": 4, "dropped": 1}])
@pytest.mark.whole
def test_tqc(settings: Mapping[str, int]) -> None:
    case = Linear(TQC, BOX, **{"quantiles": 5, **settings})
    paper, w = Truncated(case), case.now
    metrics = case.run()[0]
    assert metrics["loss/q"] == pytest.approx(paper.critic(w), **CLOSE)
    assert metrics["loss/actor"] == pytest.approx(paper.actor(w), **CLOSE)
    if settings:
        case.moves_down("critics", paper.critic, *paper.critics)
        case.moves_down("actor", paper.actor, "actor")


@pytest.mark.parametrize("dropped", [5, 6])
def test_a_target_without_quantiles_is_refused(dropped: int) -> None:
    algorithm = Linear(TQC, BOX, quantiles=5).algorithm
    algorithm.config = TQC.Config(quantiles=5, dropped=dropped)
    with raises(ConfigError, key=("algorithm", "dropped"), value=str(dropped)):
        algorithm.check("sync", 4, ReplaySection())


def _discrete_gap(case: Linear, w: Weights) -> float:
    """Equation 4 of Kumar et al. 2020: log of the sum of exp Q over all actions, minus Q of the action of the data."""
    total = 0.0
    for name in Q:
        for row, action in enumerate(case.batch["action"]):
            q = linear(w, name, case.batch["obs"][row])
            total += (np.log(sum(np.exp(value) for value in q)) - q[action]) / ROWS
    return float(total)


def _sampled_gap(case: Linear, w: Weights, policy: Weights) -> float:
    """Appendix F: half of the samples are uniform, half are of the policy, each divided by its density."""
    total, batch = 0.0, case.batch
    stored, count = scaled(batch["action"]), batch["uniform"].shape[1]
    for name in Q:
        for row in range(ROWS):
            obs, integral = batch["obs"][row], 0.0
            for sample in range(count):
                uniform = 2.0 * batch["uniform"][row, sample] - 1.0
                drawn, log_prob = squashed(linear(policy, "actor", obs), batch["sampled"][row, sample])
                q_uniform, q_drawn = (linear(w, name, with_action(obs, a))[0] for a in (uniform, drawn))
                integral += (np.exp(q_uniform) / 0.5**2 + np.exp(q_drawn) / np.exp(log_prob)) / (2 * count)
            total += (np.log(integral) - linear(w, name, with_action(obs, stored[row]))[0]) / ROWS
    return float(total)


@pytest.mark.parametrize("is_discrete", [True, False], ids=["discrete", "continuous"])
def test_cql(is_discrete: bool) -> None:
    """The rest of the loss is that of SAC."""
    settings = {"conservative_weight": 3.0, "sampled_actions": 4}
    case = Linear(CQL, DISCRETE if is_discrete else BOX, **settings)
    sac = Linear(CQL, DISCRETE if is_discrete else BOX, **{**settings, "conservative_weight": 0.0})
    w = case.now
    policy = {name: array for name, array in w.items() if name.startswith("actor")}

    def gap(weights: Weights) -> float:
        return _discrete_gap(case, weights) if is_discrete else _sampled_gap(case, weights, policy)

    metrics, of_sac = case.run()[0], sac.run()[0]
    assert metrics["loss/conservative"] == pytest.approx(gap(w), **CLOSE)
    assert metrics["loss/q"] == pytest.approx(of_sac["loss/q"] + 3.0 * gap(w), **CLOSE)
    assert metrics["loss/actor"] == pytest.approx(of_sac["loss/actor"], **CLOSE)
    heavy = Linear(CQL, DISCRETE if is_discrete else BOX, **{**settings, "conservative_weight": 1e4})
    heavy.moves_down("critics", gap, *Q)


def test_the_estimate_of_cql_is_the_integral_over_all_actions() -> None:
    """Of a sum over a grid of (-1, 1), with many samples of a broad policy."""
    case = Linear(CQL, BOX, sampled_actions=4000)
    case.initial |= {name: 0.1 * case.initial[name] for name in ("actor.0.weight", "actor.0.bias")}
    grid = (np.arange(200) + 0.5) / 100 - 1
    actions = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    batch, w = case.batch, case.now
    learner: Any = case.learner()
    found = learner.soft_maxima({name: learner.tensor(column[:3]) for name, column in batch.items()})
    for name, values in zip(Q, found, strict=True):
        for row in range(3):
            obs = np.repeat(batch["obs"][row : row + 1], len(actions), 0)
            exact = np.log(np.exp(linear(w, name, with_action(obs, actions))).mean() * 4.0)
            assert float(values.detach()[row]) == pytest.approx(exact, abs=0.05)


class Deterministic:
    """Algorithm 1 of Lillicrap et al. 2016."""

    def __init__(self, case: Linear) -> None:
        self.batch, w = case.batch, case.now
        action = np.tanh(linear(w, "target.actor", self.batch["next_obs"]))
        following = linear(w, "target.q1", with_action(self.batch["next_obs"], action))[:, 0]
        self.target = self.batch["n_step_return"] + self.batch["discount"] * following

    def critic(self, w: Weights) -> float:
        q = linear(w, "q1", with_action(self.batch["obs"], scaled(self.batch["action"])))[:, 0]
        return float(((q - self.target) ** 2).mean())

    def actor(self, w: Weights) -> float:
        action = np.tanh(linear(w, "actor", self.batch["obs"]))
        return float(-linear(w, "q1", with_action(self.batch["obs"], action)).mean())


def test_ddpg() -> None:
    case = Linear(DDPG, BOX)
    paper, w = Deterministic(case), case.now
    metrics, moved = case.run()
    assert metrics["loss/q"] == pytest.approx(paper.critic(w), **CLOSE)
    assert metrics["loss/actor"] == pytest.approx(paper.actor(w), **CLOSE)
    case.moves_down("critics", paper.critic, "q1")
    case.moves_down("actor", paper.actor, "actor")
    for name, change in moved.items():
        if name.startswith("target."):
            np.testing.assert_allclose(change, 0.005 * (w[name.removeprefix("target.")] - w[name]), atol=1e-6)
    assert not case.learner().noise() and not case.learner().variant(3)
