"""DQN that publishes the weights it was given; its learner has no torch. For PPO there is `zmqrl.bench.noop`."""

from __future__ import annotations

import numpy as np

from zmqrl.algorithms.base import LearnerContext, LearnResult, OffPolicyLearner, Progress
from zmqrl.algorithms.dqn import DQN
from zmqrl.replay.base import Replay, SegmentBatch
from zmqrl.types import Array, Weights


class IdleDQN(DQN):
    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return _IdleLearner(context.weights)


class _IdleLearner(OffPolicyLearner):
    def __init__(self, weights: Weights) -> None:
        self._weights = {name: np.array(array) for name, array in weights.items()}

    def weights(self) -> dict[str, Array]:
        return dict(self._weights)

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, weights: Weights, state: Weights) -> None:
        del state
        self._weights = {name: np.array(weights[name]) for name in self._weights}

    def observe(self, batch: SegmentBatch) -> None:
        del batch

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        del replay, progress
        return LearnResult(updates, {})
