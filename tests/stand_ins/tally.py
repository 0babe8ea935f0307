"""An algorithm without torch whose weights depend on every row, in its place and order: a lost or moved row shows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, Weights

STEP = 1e-2


@dataclass(frozen=True)
class TallyConfig(PPOConfig):
    """Those of PPO, most of which have no effect."""

    round_s: float = 0.0
    """Duration of a round of learning: time for a fault to happen in."""


class Tally(PPO):
    """PPO's network and acting."""

    Config: ClassVar[type[TallyConfig]] = TallyConfig

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        assert isinstance(self.config, TallyConfig)
        return TallyLearner(context.weights, self.config.round_s)


class ScheduledTally(Tally):
    """Sends a number that its head does not read."""

    def schedule(self, progress: Progress) -> dict[str, float]:
        return {"done": 0.125 * progress.fraction}


class TallyLearner(OnPolicyLearner):
    """Adds to each array a number that depends on all rows."""

    def __init__(self, weights: Weights, round_s: float) -> None:
        self.round_s = round_s
        self.arrays = {name: np.array(array) for name, array in sorted(weights.items())}

    def weights(self) -> dict[str, Array]:
        return dict(self.arrays)

    def network_names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, weights: Weights, state: Weights) -> None:
        del state
        self.arrays = {name: np.array(weights[name]) for name in self.arrays}

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        del progress
        time.sleep(self.round_s)
        rows = np.concatenate([np.ravel(batch.columns[name]).astype(np.float64) for name in ("obs", "action")])
        for index, (name, array) in enumerate(self.arrays.items()):
            change = np.sin(float(rows @ np.cos(np.arange(rows.size) + index)))
            self.arrays[name] = (array + STEP * change).astype(array.dtype)
        return LearnResult(1, {})
