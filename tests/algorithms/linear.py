"""Learners without hidden layers, whose losses are computed again in float64, and what their steps change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zmqrl.algorithms.base import Algorithm, LearnerContext
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import ReplayLearner
from zmqrl.testing.experience import version_0
from zmqrl.types import Array, EnvSpec, SpaceSpec

ROWS, OBS, RATE = 12, 3, 1e-3
FLAT, NEAR = 1e-3, 1e-6
"""Slopes below `FLAT` have a sign that rounding may change; half the distance of finite differences."""
OBSERVATION = SpaceSpec("box", (OBS,), "float32")
BOX = SpaceSpec("box", (2,), "float32", 0, (-2.0, 0.0), (2.0, 1.0))
DISCRETE = SpaceSpec("discrete", (), "int64", 4)
SEVERAL = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
Loss = Callable[[Mapping[str, Array]], float]


class Linear:
    """An algorithm with random weights, a random batch, and both in float64."""

    def __init__(self, kind: type[Algorithm], action: SpaceSpec, **config: Any) -> None:
        random = np.random.default_rng(5)
        env = EnvSpec("toy", OBSERVATION, action)
        self.algorithm = kind(kind.Config(**config), NetworkSection(hidden=()), env, 16, 2)
        self.initial = {name: _normal(random, array.shape) for name, array in version_0(self.algorithm).items()}
        learner = self.learner()
        held = [name for name in learner.state() if name.startswith("target.")]
        self.targets = {name: _normal(random, self.initial[name.removeprefix("target.")].shape) for name in held}
        if action.kind == "box":
            stored = np.array(action.low) + random.random((ROWS, 2)) * (np.array(action.high) - np.array(action.low))
        else:
            stored = random.integers(0, action.n or action.nvec, (ROWS, *action.shape))
        self.batch: dict[str, Array] = {
            "obs": _normal(random, (ROWS, OBS)),
            "next_obs": _normal(random, (ROWS, OBS)),
            "action": stored.astype(action.dtype),
            "n_step_return": _normal(random, (ROWS,)),
            "discount": np.where(random.random(ROWS) < 0.3, 0.0, 0.9).astype(np.float32),
            **{name: array.numpy() for name, array in learner.draw_noise(0, ROWS).items()},
        }

    def learner(self) -> ReplayLearner:
        """A new one, with the weights of version 0 and of the targets."""
        learner = self.algorithm.learner(LearnerContext(self.initial))
        assert isinstance(learner, ReplayLearner)
        if hasattr(self, "targets"):
            learner.load_state(learner.weights(), {**learner.state(), **self.targets})
        return learner

    @property
    def now(self) -> dict[str, Array]:
        """Weights and targets in float64."""
        return {name: array.astype(np.float64) for name, array in {**self.initial, **self.targets}.items()}

    def run(self, *moving: str) -> tuple[dict[str, float], dict[str, Array]]:
        """Metrics of one update in which the groups `moving` move, and what it adds to each tensor."""
        learner = self.learner()
        rates = {name: RATE if name in moving else 0.0 for name in learner.net.groups}
        found = learner.run({name: learner.tensor(column) for name, column in self.batch.items()}, rates)
        state = {name.removeprefix("private."): array for name, array in learner.state().items()}
        after = {**state, **learner.weights()}
        return {name: float(value) for name, value in found.items()}, {
            name: after[name].reshape(array.shape) - array for name, array in {**self.initial, **self.targets}.items()
        }

    def moves_down(self, group: str, loss: Loss, *towers: str) -> None:
        """Check that the first step of Adam has in each entry of these towers the sign of the slope of `loss`."""
        moved, now, sloping = self.run(group)[1], self.now, 0
        for name in (name for name in self.initial if name.split(".")[0] in towers):
            for place in np.ndindex(now[name].shape):
                slope = (loss(_changed(now, name, place, NEAR)) - loss(_changed(now, name, place, -NEAR))) / (2 * NEAR)
                if abs(slope) > FLAT:
                    sloping += 1
                    assert np.sign(moved[name][place]) == -np.sign(slope), (name, place, slope, moved[name][place])
        assert sloping >= len(towers)
        others = {name for name, change in moved.items() if change.any() and not name.startswith("target.")}
        assert {name.split(".")[0] for name in others} <= {*towers}


def linear(weights: Mapping[str, Array], tower: str, x: Array) -> Array:
    """Outputs of a tower, of `target.TOWER` those of the target."""
    found: Array = x @ weights[f"{tower}.0.weight"].T + weights[f"{tower}.0.bias"]
    return found


def squashed(outputs: Array, noise: Array) -> tuple[Array, Array]:
    """Actions tanh(mean + deviation noise) and their log-densities, by the change of variables."""
    mean, log_std = np.split(outputs, 2, -1)
    log_std = log_std.clip(-20.0, 2.0)
    before = mean + np.exp(log_std) * noise
    density = np.exp(-0.5 * noise**2) / (np.exp(log_std) * np.sqrt(2 * np.pi)) / (1 - np.tanh(before) ** 2)
    return np.tanh(before), np.log(density).sum(-1)


def softmax(logits: Array) -> Array:
    p: Array = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def scaled(action: Array) -> Array:
    """Actions of `BOX` in [-1, 1]."""
    low, high = np.array(BOX.low), np.array(BOX.high)
    found: Array = 2 * (action - low) / (high - low) - 1
    return found


def with_action(obs: Array, action: Array) -> Array:
    return np.concatenate([obs, action], -1)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.normal(size=shape).astype(np.float32)


def _changed(weights: Mapping[str, Array], name: str, place: tuple[int, ...], by: float) -> dict[str, Array]:
    array = weights[name].copy()
    array[place] += by
    return {**weights, name: array}
