"""An algorithm without torch whose weights depend on every row, in its place and order: a lost or moved row shows."""

from __future__ import annotations

import numpy as np

from zmqrl.algorithms.base import LearnResult, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, Weights

STEP = 1e-2


class Tally(PPO):
    """PPO's network and acting."""

    def learner(self, weights: Weights, device: str) -> OnPolicyLearner:
        del device
        return _TallyLearner(weights)


class _TallyLearner(OnPolicyLearner):
    def __init__(self, weights: Weights) -> None:
        self._weights = {name: np.array(array) for name, array in sorted(weights.items())}

    def weights(self) -> dict[str, Array]:
        return dict(self._weights)

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, weights: Weights, state: Weights) -> None:
        del state
        self._weights = {name: np.array(weights[name]) for name in self._weights}

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        del progress
        rows = np.concatenate([np.ravel(batch.columns[name]).astype(np.float64) for name in ("obs", "action")])
        for index, (name, array) in enumerate(self._weights.items()):
            change = np.sin(float(rows @ np.cos(np.arange(rows.size) + index)))
            self._weights[name] = (array + STEP * change).astype(array.dtype)
        return LearnResult(1, {})
