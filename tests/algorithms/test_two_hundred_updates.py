"""200 updates with the weights, batches and noise of Stable-Baselines3 end with its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.oracles.two_hundred_updates import ORACLE, SEED, UPDATES, algorithm, sample, weights
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner, Progress
from zmqrl.replay.base import AnySample, Replay, ReplaySample, SegmentBatch, SequenceSample
from zmqrl.types import Array

FOUND: dict[str, Any] = json.loads(ORACLE.read_text())
TOLERANCE = 1e-4


class Given(Replay):
    """Samples of the oracle."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        del batch_size, n_step, gamma
        return sample(self._kind, key)

    def sample_sequences(self, count: int, key: int) -> SequenceSample:
        raise AssertionError("there are none")

    def set_priorities(self, sample: AnySample, priorities: Array) -> None:
        raise AssertionError("there are none")

    @property
    def size(self) -> int:
        return 1

    @property
    def segments(self) -> int:
        return 0

    def batches(self, segments: int) -> Iterator[SegmentBatch]:
        raise AssertionError("there are none")


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
@pytest.mark.whole
def test_the_weights_are_those_of_stable_baselines3(kind: str) -> None:
    learner = algorithm(kind).learner(LearnerContext(weights(kind), "cpu", SEED))
    assert isinstance(learner, OffPolicyLearner)
    learner.update(Given(kind), UPDATES, Progress(SEED, 0, 0, 1))
    state = {name.removeprefix("private."): array for name, array in learner.state().items()}
    ours = {**state, **learner.weights()}
    moved = 0.0
    for name, expected in FOUND[kind].items():
        np.testing.assert_allclose(ours[name].ravel(), expected, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)
        moved = max(moved, float(np.abs(ours[name].ravel() - weights(kind)[name].ravel()).max()))
    assert moved > 0.05, "200 updates went somewhere"
