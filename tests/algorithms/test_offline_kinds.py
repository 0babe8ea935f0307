"""Behaviour cloning and IQL: losses and steps are those of the papers, computed in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.algorithms.linear import (
    BOX,
    DISCRETE,
    OBSERVATION,
    ROWS,
    SEVERAL,
    Linear,
    linear,
    scaled,
    softmax,
    with_action,
)
from zmqrl.algorithms.bc import BC, LOG_STD_MIN
from zmqrl.algorithms.iql import IQL
from zmqrl.algorithms.ppo import PPO
from zmqrl.config.sections import NetworkSection
from zmqrl.types import Array, EnvSpec, SpaceSpec

Weights = Mapping[str, Array]
CLOSE: Mapping[str, Any] = {"rel": 1e-4, "abs": 1e-5}
SPACES = pytest.mark.parametrize("space", [DISCRETE, SEVERAL, BOX], ids=lambda space: space.kind)
Q = ("q1", "q2")


def log_probs(w: Weights, space: SpaceSpec, batch: Mapping[str, Array]) -> Array:
    """log p(a | s) of each row."""
    found = []
    for outputs, action in zip(linear(w, "actor", batch["obs"]), batch["action"], strict=True):
        if space.kind == "box":
            deviation = np.exp(np.maximum(w["log_std"], LOG_STD_MIN))
            density = np.exp(-0.5 * ((action - outputs) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
            found.append(np.log(density).sum())
        else:
            parts = np.split(outputs, np.cumsum(space.choices)[:-1])
            entries = zip(parts, np.atleast_1d(action), strict=True)
            found.append(sum(np.log(softmax(part)[entry]) for part, entry in entries))
    return np.array(found)


@SPACES
def test_bc(space: SpaceSpec) -> None:
    case = Linear(BC, space)

    def loss(w: Weights) -> float:
        return float(-log_probs(w, space, case.batch).mean())

    assert case.run()[0]["loss/actor"] == pytest.approx(loss(case.now), **CLOSE)
    case.moves_down("actor", loss, *("actor", "log_std")[: 2 if space.kind == "box" else 1])


def test_a_deviation_has_a_least_value() -> None:
    """Of data that the mean fits: the step below it is the last one."""
    case = Linear(BC, BOX)
    for log_std, moves in ((LOG_STD_MIN + 0.1, True), (LOG_STD_MIN - 0.1, False)):
        case.initial["log_std"] = np.full(2, log_std, np.float32)
        case.batch["action"] = linear(case.initial, "actor", case.batch["obs"])
        assert bool(case.run("actor")[1]["log_std"].any()) is moves


@SPACES
def test_ppo_may_start_from_a_version_of_bc(space: SpaceSpec) -> None:
    """Tower and parameters have the same names, and the worker acts in the same way."""
    bc = Linear(BC, space).algorithm
    ppo = PPO(PPO.Config(), NetworkSection(hidden=()), EnvSpec("toy", OBSERVATION, space), 16, 2)
    assert bc.network().tower("actor") == ppo.network().tower("actor")
    assert bc.network().parameters == ppo.network().parameters
    assert (bc.acting().head, bc.acting().arrays) == (ppo.acting().head, ppo.acting().arrays)


class Implicit:
    """Equations 5 to 7 of Kostrikov et al. 2021, each with the other networks as they are."""

    def __init__(self, case: Linear, space: SpaceSpec) -> None:
        self.space, self.batch, self.config, w = space, case.batch, case.algorithm.config, case.now
        action = self.batch["action"]
        encoded = scaled(action) if space.kind == "box" else np.zeros((ROWS, sum(space.choices)))
        for row in range(ROWS if space.choices else 0):
            begin = 0
            for entry, n in zip(np.atleast_1d(action[row]), space.choices, strict=True):
                encoded[row, begin + entry] = 1.0
                begin += n
        self.pairs = with_action(self.batch["obs"], encoded)
        self.lower = np.minimum(*(linear(w, f"target.{name}", self.pairs)[:, 0] for name in Q))
        self.advantage = self.lower - linear(w, "value", self.batch["obs"])[:, 0]
        following = linear(w, "value", self.batch["next_obs"])[:, 0]
        self.target = self.batch["n_step_return"] + self.batch["discount"] * following

    def value(self, w: Weights) -> float:
        total = 0.0
        for u in self.lower - linear(w, "value", self.batch["obs"])[:, 0]:
            total += abs(self.config.expectile - (u < 0)) * u**2 / ROWS
        return total

    def critic(self, w: Weights) -> float:
        return float(sum(((linear(w, name, self.pairs)[:, 0] - self.target) ** 2).mean() for name in Q))

    def actor(self, w: Weights) -> float:
        weight = np.minimum(np.exp(self.config.inverse_temperature * self.advantage), self.config.max_weight)
        return float(-(weight * log_probs(w, self.space, self.batch)).mean())


@SPACES
@pytest.mark.parametrize("settings", [{}, {"expectile": 0.9, "inverse_temperature": 0.5, "max_weight": 2.0}], ids=str)
def test_iql(space: SpaceSpec, settings: Mapping[str, float]) -> None:
    case = Linear(IQL, space, **settings)
    paper, w = Implicit(case, space), case.now
    metrics = case.run()[0]
    assert metrics["loss/value"] == pytest.approx(paper.value(w), **CLOSE)
    assert metrics["loss/q"] == pytest.approx(paper.critic(w), **CLOSE)
    assert metrics["loss/actor"] == pytest.approx(paper.actor(w), **CLOSE)
    if settings:
        case.moves_down("value", paper.value, "value")
        case.moves_down("critics", paper.critic, *Q)
        case.moves_down("actor", paper.actor, *("actor", "log_std")[: 2 if space.kind == "box" else 1])


def test_the_advantage_is_that_of_the_value_after_its_step() -> None:
    """As in the code of the paper: with a large step of the value the weights of all actions change."""
    case = Linear(IQL, DISCRETE)
    assert case.run("value")[0]["loss/actor"] != case.run()[0]["loss/actor"]
