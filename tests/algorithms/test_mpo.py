"""MPO and V-MPO: losses, dual variables and steps are those of the papers, computed sample by sample in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.algorithms.linear import BOX, FLAT, NEAR, ROWS, Linear, linear, scaled, with_action
from tests.algorithms.test_policy_gradients import ENVS, OBS, STEPS, batch_of, segment, values
from tests.oracles import brute_force
from zmqrl.algorithms.base import LearnerContext, Progress
from zmqrl.algorithms.mpo.mpo import MPO
from zmqrl.algorithms.mpo.vmpo import VMPO
from zmqrl.config.sections import NetworkSection
from zmqrl.loading import torch
from zmqrl.networks.initial import initial_weights
from zmqrl.spaces import composite, view
from zmqrl.testing.experience import observed
from zmqrl.types import Array, EnvSpec, SpaceSpec

Weights = Mapping[str, Array]
CLOSE: Mapping[str, Any] = {"rel": 1e-4, "abs": 1e-5}
EPSILONS = {"epsilon": 0.3, "epsilon_mean": 0.05, "epsilon_deviation": 0.02}
GAMMA, LAMBDA, VF = 0.9, 0.8, 0.7


def log_normal(x: Array, mean: Array, std: Array) -> float:
    return float((-0.5 * ((x - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))).sum())


def divergence(old_mean: Array, old_std: Array, mean: Array, std: Array) -> float:
    """KL(old || new) of Gaussians with diagonal covariance."""
    variance = (old_std**2 + (old_mean - mean) ** 2) / (2 * std**2)
    return float((np.log(std / old_std) + variance - 0.5).sum())


class Paper:
    """E-step with samples of the old policy, M-step with a bound each for mean and deviation."""

    def __init__(self, case: Linear) -> None:
        self.batch, w = case.batch, case.now
        self.first = w
        self.eta = float(np.exp(w["log_temperature"]))
        drawn = [self._values(w, "obs", "noise", row) for row in range(ROWS)]
        self.before, self.values = ([row[part] for row in drawn] for part in (0, 1))
        following = [np.mean(self._values(w, "next_obs", "next_noise", row)[1]) for row in range(ROWS)]
        self.target = self.batch["n_step_return"] + self.batch["discount"] * following

    def policy(self, w: Weights, tower: str, obs: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(linear(w, tower, obs), 2)
        return mean, np.exp(log_std.clip(-20, 2))

    def _values(self, w: Weights, obs: str, noise: str, row: int) -> tuple[list[Array], list[float]]:
        mean, std = self.policy(w, "target.actor", self.batch[obs][row])
        before = [mean + std * drawn for drawn in self.batch[noise][row]]
        return before, [linear(w, "target.q1", with_action(self.batch[obs][row], np.tanh(u)))[0] for u in before]

    def critic(self, w: Weights) -> float:
        q = linear(w, "q1", with_action(self.batch["obs"], scaled(self.batch["action"])))[:, 0]
        return float(((q - self.target) ** 2).mean())

    def fit(self, w: Weights) -> float:
        total = 0.0
        for row in range(ROWS):
            obs = self.batch["obs"][row]
            (old_mean, old_std), (mean, std) = (
                self.policy(self.first, "target.actor", obs),
                self.policy(w, "actor", obs),
            )
            weights = np.exp(np.array(self.values[row]) / self.eta)
            for weight, u in zip(weights / weights.sum(), self.before[row], strict=True):
                total -= weight * (log_normal(u, mean, old_std) + log_normal(u, old_mean, std)) / ROWS
        return total

    def divergences(self, w: Weights) -> dict[str, float]:
        found = {"mean": 0.0, "deviation": 0.0}
        for obs in self.batch["obs"]:
            (old_mean, old_std), (mean, std) = (
                self.policy(self.first, "target.actor", obs),
                self.policy(w, "actor", obs),
            )
            found["mean"] += divergence(old_mean, old_std, mean, old_std) / ROWS
            found["deviation"] += divergence(old_mean, old_std, old_mean, std) / ROWS
        return found

    def actor(self, w: Weights) -> float:
        alphas = {name: np.exp(self.first[f"log_alpha_{name}"]) for name in ("mean", "deviation")}
        return self.fit(w) + sum(float(alphas[name]) * kl for name, kl in self.divergences(w).items())

    def temperature(self, w: Weights) -> float:
        eta = float(np.exp(w["log_temperature"]))
        return eta * EPSILONS["epsilon"] + eta * float(
            np.mean([np.log(np.mean(np.exp(np.array(row) / eta))) for row in self.values])
        )

    def dual(self, w: Weights) -> float:
        kls = self.divergences(self.first)
        bounds = (np.exp(w[f"log_alpha_{name}"]) * (EPSILONS[f"epsilon_{name}"] - kls[name]) for name in kls)
        return self.temperature(w) + float(sum(bounds))


def test_mpo() -> None:
    case = Linear(MPO, BOX, samples=4, **EPSILONS)
    paper, w = Paper(case), case.now
    metrics = case.run()[0]
    expected = {f"kl_{name}": kl for name, kl in paper.divergences(w).items()}
    expected |= {f"alpha_{name}": float(np.exp(w[f"log_alpha_{name}"])) for name in ("mean", "deviation")}
    expected |= {"loss/q": paper.critic(w), "loss/actor": paper.fit(w), "loss/temperature": paper.temperature(w)}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, **CLOSE)
    assert metrics["temperature"] == pytest.approx(paper.eta, **CLOSE)
    case.moves_down("critics", paper.critic, "q1")
    case.moves_down("actor", paper.actor, "actor")
    case.moves_down("duals", paper.dual, "log_temperature", "log_alpha_mean", "log_alpha_deviation")


def test_a_message_has_the_kind_by_its_name() -> None:
    assert str(MPO.misfit(EnvSpec("toy", OBSERVATION, SPACES["discrete"]))).startswith("mpo needs continuous actions")


def test_the_targets_of_mpo_are_copies_that_change_together() -> None:
    case = Linear(MPO, BOX, samples=2, target_update_every=4)
    learner: Any = case.learner()
    assert [number for number in range(12) if learner.variant(number)["moves_targets"]] == [3, 7, 11]
    batch = {name: learner.tensor(column) for name, column in case.batch.items()}
    for moves in (False, True):
        learner.run(batch, dict.fromkeys(learner.net.groups, 1e-3), moves_targets=moves)
        state = learner.state()
        now = {**learner.weights(), **{name.removeprefix("private."): array for name, array in state.items()}}
        same = {name: np.array_equal(state[name], now[name.removeprefix("target.")]) for name in case.targets}
        assert len(same) == 4 and set(same.values()) == {moves}


OBSERVATION = SpaceSpec("box", (OBS,), "float32")
SPACES: Mapping[str, SpaceSpec] = {
    "discrete": SpaceSpec("discrete", (), "int64", 3),
    "several": SpaceSpec("multi_discrete", (2,), "int64", nvec=(3, 2)),
    "continuous": SpaceSpec("box", (2,), "float32", 0, (-1.0, -1.0), (1.0, 1.0)),
}


class OnPolicyPaper:
    """Equations 3 to 6 of Song et al. 2020, for rows that another policy may have acted."""

    def __init__(self, space: SpaceSpec, columns: Mapping[str, Array], old: Weights) -> None:
        self.space, self.columns, self.old = space, columns, old
        fixed = {**columns, "value": values(old, columns)}
        self.advantage = brute_force.gae(fixed, GAMMA, LAMBDA)
        self.target = self.advantage + fixed["value"][:-1]
        self.rows = [(t, e) for t in range(STEPS) for e in range(ENVS) if columns["valid"][t, e]]
        middle = np.median([self.advantage[row] for row in self.rows])
        self.upper = [row for row in self.rows if self.advantage[row] >= middle]
        self.share = [min(1.0, np.exp(self.log_prob(old, row) - columns["log_prob"][row])) for row in self.upper]

    def parts(self, w: Weights, row: tuple[int, int]) -> list[Array]:
        """Probabilities of each entry of the action."""
        logits = linear(w, "actor", self.columns["obs"][row])
        exps = [np.exp(part) for part in np.split(logits, np.cumsum(self.space.choices)[:-1])]
        return [part / part.sum() for part in exps]

    def log_prob(self, w: Weights, row: tuple[int, int]) -> float:
        action = self.columns["action"][row]
        if not self.space.choices:
            return log_normal(action, linear(w, "actor", self.columns["obs"][row]), np.exp(w["log_std"]))
        chosen = zip(self.parts(w, row), np.atleast_1d(action), strict=True)
        return float(sum(np.log(part[one]) for part, one in chosen))

    def divergences(self, w: Weights) -> dict[str, float]:
        if self.space.choices:
            pairs = [zip(self.parts(self.old, row), self.parts(w, row), strict=True) for row in self.rows]
            return {"policy": float(np.mean([sum((p * np.log(p / q)).sum() for p, q in row) for row in pairs]))}
        old_std, std, found = np.exp(self.old["log_std"]), np.exp(w["log_std"]), []
        for row in self.rows:
            old_mean, mean = (linear(v, "actor", self.columns["obs"][row]) for v in (self.old, w))
            found.append([divergence(old_mean, old_std, mean, old_std), divergence(old_mean, old_std, old_mean, std)])
        return dict(zip(("mean", "deviation"), np.mean(found, 0).tolist(), strict=True))

    def weights(self, eta: float) -> Array:
        """Exp(A / eta) of the rows that count, by their shares."""
        return np.array([s * np.exp(self.advantage[row] / eta) for s, row in zip(self.share, self.upper, strict=True)])

    def policy(self, w: Weights, eta: float) -> float:
        psi = self.weights(eta) / self.weights(eta).sum()
        return -float(sum(p * self.log_prob(w, row) for p, row in zip(psi, self.upper, strict=True)))

    def value(self, w: Weights) -> float:
        found = values(w, self.columns)
        return float(np.mean([(found[row] - self.target[row]) ** 2 for row in self.rows]))

    def temperature(self, eta: float) -> float:
        return eta * 0.3 + eta * float(np.log(self.weights(eta).sum() / sum(self.share)))


def slope(loss: Any, w: Weights, name: str, place: tuple[int, ...]) -> float:
    ends = []
    for by in (NEAR, -NEAR):
        moved = w[name].copy()
        moved[place] += by
        ends.append(loss({**w, name: moved}))
    return float((ends[0] - ends[1]) / (2 * NEAR))


@pytest.mark.parametrize("kind", SPACES)
def test_vmpo(kind: str) -> None:
    """The old policy is that of the start of the batch, from which the newest one has moved away."""
    space, random, bounds = SPACES[kind], np.random.default_rng(7), {**EPSILONS, "epsilon_policy": 0.05}
    columns = segment()
    drawn = random.normal(size=(STEPS, ENVS, 2)) if not space.choices else random.integers(0, 2, (STEPS, ENVS, 2))
    columns["action"] = (drawn if space.shape else drawn[..., 0]).astype(space.dtype)
    config = VMPO.Config(gamma=GAMMA, gae_lambda=LAMBDA, vf_coef=VF, **bounds)
    algorithm = VMPO(config, NetworkSection(hidden=()), EnvSpec("toy", OBSERVATION, space), STEPS, ENVS)
    shapes = initial_weights(algorithm.network(), 1)
    old, now = (
        {name: random.normal(0, 0.5, array.shape).astype(np.float32) for name, array in shapes.items()}
        for _ in range(2)
    )
    learner: Any = algorithm.learner(LearnerContext(old))
    with torch.no_grad():
        rows = learner.prepare(batch_of(columns), Progress(1, 0, 0, 1))
    learner.load_state(now, {**learner.state(), **{f"private.{name}": now[name] for name in now if "log_" in name}})
    found = {name: float(value) for name, value in learner.run(rows, {"policy": 1e-3, "duals": 1e-3}).items()}
    first, w = ({name: array.astype(np.float64) for name, array in each.items()} for each in (old, now))
    paper, eta = OnPolicyPaper(space, columns, first), float(np.exp(w["log_temperature"]))
    kls = paper.divergences(w)
    alphas = {name: float(np.exp(w[f"log_alpha_{name}"])) for name in kls}
    expected = {"loss/policy": paper.policy(w, eta), "loss/value": paper.value(w), "temperature": eta}
    expected |= {"loss/temperature": paper.temperature(eta), **{f"kl_{name}": kl for name, kl in kls.items()}}
    assert {name: found[name] for name in expected} == pytest.approx(expected, **CLOSE)

    def primal(v: Weights) -> float:
        penalty = sum(alphas[name] * kl for name, kl in paper.divergences(v).items())
        return paper.policy(v, eta) + VF * paper.value(v) + penalty

    def dual(v: Weights) -> float:
        surplus = (float(np.exp(v[f"log_alpha_{name}"])) * (bounds[f"epsilon_{name}"] - kls[name]) for name in kls)
        return paper.temperature(float(np.exp(v["log_temperature"]))) + sum(surplus)

    after = {name.removeprefix("private."): array for name, array in {**learner.state(), **learner.weights()}.items()}
    for name, array in now.items():
        loss = primal if name.split(".")[0] in ("actor", "critic", "log_std") else dual
        slopes = {place: slope(loss, w, name, place) for place in np.ndindex(array.shape)}
        steep = {place: found for place, found in slopes.items() if abs(found) > FLAT}
        assert steep, name
        for place, found_slope in steep.items():
            moved = after[name].reshape(array.shape)[place] - array[place]
            assert np.sign(moved) == -np.sign(found_slope), (name, place, found_slope, moved)


def test_a_mask_has_no_divergence_of_forbidden_actions() -> None:
    """Nor a gradient that is not a number."""
    parts = {"action_mask": SpaceSpec("box", (3,), "int8"), "vector": OBSERVATION}
    observation = composite([(name, part, (name,)) for name, part in parts.items()])
    algorithm = VMPO(
        VMPO.Config(), NetworkSection(hidden=()), EnvSpec("toy", observation, SPACES["discrete"]), STEPS, ENVS
    )
    learner: Any = algorithm.learner(LearnerContext(initial_weights(algorithm.network(), 1)))
    columns, random = segment(), np.random.default_rng(1)
    columns["obs"] = observed(algorithm, random, (STEPS + 1, ENVS))
    assert observation.action_mask is not None
    view(columns["obs"], observation, observation.action_mask)[...] = [1, 1, 0]
    columns["action"] = random.integers(0, 2, (STEPS, ENVS))
    result = learner.learn(batch_of(columns), Progress(1, 0, 0, 1))
    assert all(np.isfinite(value) for value in result.metrics.values())
    old, now = random.normal(size=(2, 5, 3))
    rows = {"old": learner.tensor(old), "mask": learner.tensor(np.tile(np.array([1, 1, 0], np.int8), (5, 1)))}
    allowed = [[np.exp(logits[:2]) / np.exp(logits[:2]).sum() for logits in each] for each in (old, now)]
    expected = [(p * np.log(p / q)).sum() for p, q in zip(*allowed, strict=True)]
    np.testing.assert_allclose(learner.divergences(learner.tensor(now), rows)["policy"], expected, rtol=1e-4)
