"""What a learner's `train` receives."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.contracts.test_algorithms import CNN
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import replace
from zmqrl.learning.learners import NetLearner
from zmqrl.plugins import load
from zmqrl.testing.algorithm import DISCRETE, PIXELS
from zmqrl.testing.experience import acted, context_of, learn
from zmqrl.types import EnvSpec


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
