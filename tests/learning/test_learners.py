"""What a learner's `train` receives, and what a learner that takes over has of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contracts.test_algorithms import CNN
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import Batch, BatchLearner, Group, LearnerContext, Progress
from zmqrl.learning.learners import NetLearner
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.plugins import load
from zmqrl.replay.base import SegmentBatch
from zmqrl.testing.algorithm import DISCRETE, PIXELS, VECTOR
from zmqrl.testing.experience import SEED, SEGMENTS, acted, context_of, is_same, learn
from zmqrl.types import MODES, Array, EnvSpec, ModeName, Weights


class Sums:
    """Statistics of a learner: one number."""

    def __init__(self) -> None:
        self.total = np.zeros(1)

    def state(self) -> dict[str, Array]:
        return {"total": self.total.copy()}

    def load_state(self, state: Weights) -> None:
        (self.total,) = (array.copy() for array in state.values())


@dataclass(frozen=True)
class Settings:
    learning_rate: float = 1e-3
    epochs: int = 3
    minibatch_size: int = 16


class Rows(Algorithm):
    Config: ClassVar[type[Settings]] = Settings
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = True

    def network(self) -> NetworkSpec:
        return NetworkSpec((("p", (LayerSpec("linear", "p.0", 3, self.env.action.n),)),))

    def acting(self) -> ActingSpec:
        return ActingSpec(self.network().tower("p"), "categorical", self.env.action, self.env.observation)

    def learner(self, context: LearnerContext) -> Recording:
        return Recording(self, context, [Group("p")], {"obs": Sums(), "obs_more": Sums()})


class Recording(BatchLearner):
    """Keeps which rows its minibatches had."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.orders: list[list[int]] = []
        """Of each epoch."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        obs = self.observations(batch.columns["obs"][:-1]).flatten(0, 1)
        for number, part in enumerate(self.parts.values(), 1):
            assert isinstance(part, Sums)
            part.total = part.total + number * batch.columns["obs"].mean()
        return {"obs": obs, "row": torch.arange(len(obs))}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        if not self.orders or len(self.orders[-1]) == ROWS:
            self.orders.append([])
        self.orders[-1] += batch["row"].tolist()
        self.net.step("p", self.net("p", batch["obs"]).square().mean())
        return {}


ROWS = SEGMENTS * 16 * 2
OF_ROWS = Rows(Settings(), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), 16, 2)


def after(*rounds: int, seed: int = SEED) -> Recording:
    learner = OF_ROWS.learner(replace(context_of(OF_ROWS), seed=seed))
    for number in rounds:
        learn(OF_ROWS, learner, acted(OF_ROWS, 1), number)
    return learner


def test_rows_are_in_another_order_in_each_epoch_and_round_and_the_same_after_a_resume() -> None:
    orders = after(0, 1).orders
    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert len({tuple(order) for order in orders}) == 2 * Settings.epochs, "each its own"
    assert after(1).orders == orders[Settings.epochs :]
    assert after(0, 1, seed=SEED + 1).orders != orders


def test_a_learner_that_takes_over_has_the_network_the_optimiser_and_every_part() -> None:
    before = after(0, 1)
    weights, state = before.weights(), before.state()
    assert state["obs/total"].any() and np.array_equal(state["obs_more/total"], 2 * state["obs/total"])
    resumed = after()
    resumed.load_state(weights, state)
    for learner in (before, resumed):
        learn(OF_ROWS, learner, acted(OF_ROWS, 1), 2)
    is_same(before.weights(), resumed.weights(), "weights after a resume")
    is_same(before.state(), resumed.state(), "state after a resume")


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_pixels_are_bytes_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network makes floats of them: these would be four times as many bytes to copy and to hold."""
    kind = load(name, "zmqrl.algorithms", Algorithm)
    algorithm = kind(kind.Config(), CNN, EnvSpec("toy", PIXELS, DISCRETE), 16, 2)
    learner = algorithm.learner(replace(context_of(algorithm), executor="eager"))
    assert isinstance(learner, NetLearner)
    train, seen = learner.train, []

    def recorded(batch: Mapping[str, Tensor], **variant: bool) -> Mapping[str, Tensor]:
        seen.extend(batch[column].dtype for column in ("obs", "next_obs") if column in batch)
        return train(batch, **variant)

    monkeypatch.setattr(learner, "train", recorded)
    learn(algorithm, learner, acted(algorithm, 1), updates=1)
    assert seen and set(seen) == {torch.uint8}
