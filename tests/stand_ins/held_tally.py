"""An on-policy algorithm without torch that uses the batches which replay holds again: whole, and as samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from tests.stand_ins.tally import Tally, TallyConfig, TallyLearner, changed
from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.replay.base import SegmentBatch
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Weights

COUNT = 8


@dataclass(frozen=True)
class HeldConfig(TallyConfig):
    phase: int = 3
    """Batches that are held, and rounds between two passes over all of them (PPG's N_pi)."""


class HeldTally(Tally):
    Config: ClassVar[type[HeldConfig]] = HeldConfig

    @property
    def held_batches(self) -> int:
        assert isinstance(self.config, HeldConfig)
        return self.config.phase

    def replay(self) -> ReplaySpec:
        return ReplaySpec(length=4, stride=4)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        assert isinstance(self.config, HeldConfig)
        return _Learner(context.weights, self.config.round_s, self.config.phase)


class _Learner(TallyLearner):
    def __init__(self, weights: Weights, round_s: float, phase: int) -> None:
        super().__init__(weights, round_s)
        self._phase = phase

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """As ACER a sample in each round, and as PPG a pass over all held segments at the end of a phase."""
        time.sleep(self.round_s)
        assert self.replay is not None and progress.version is not None
        sample = self.replay.sample_sequences(COUNT, progress.updates)
        self.arrays = changed(self.arrays, (batch.columns["obs"], *sample.columns.values()))
        if (progress.version.n + 1) % self._phase == 0:
            for held in self.replay.batches(3):
                self.arrays = changed(self.arrays, (held.columns["obs"], held.columns["action"]))
        return LearnResult(1, {"held": self.replay.segments})
