"""An algorithm without torch whose weights depend on every row, in its place and order: a lost or moved row shows."""

from __future__ import annotations

import time
from collections.abc import Iterable
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
        self.arrays = changed(self.arrays, (batch.columns[name] for name in ("obs", "action")))
        return LearnResult(1, {})


def changed(arrays: Weights, rows: Iterable[Array]) -> dict[str, Array]:
    """To each array is added a number that depends on every element of the rows and on its place."""
    flat = np.concatenate([np.ravel(array).astype(np.float64) for array in rows])
    found = {}
    for index, (name, array) in enumerate(arrays.items()):
        change = np.sin(float(flat @ np.cos(np.arange(flat.size) + index)))
        found[name] = (array + STEP * change).astype(array.dtype)
    return found
