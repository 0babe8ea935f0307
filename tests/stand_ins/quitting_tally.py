"""An algorithm that ends its process in its fourth round of learning, as a script does after its last plot."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import ClassVar

from tests.stand_ins.tally import Tally, TallyConfig, TallyLearner
from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.replay.base import SegmentBatch


@dataclass(frozen=True)
class QuittingConfig(TallyConfig):
    """Those of Tally, and how it ends."""

    how: str = "sys.exit"


class Quitting(Tally):
    """`how`: `sys.exit` or `os._exit`, each with exit code 0."""

    Config: ClassVar[type[QuittingConfig]] = QuittingConfig

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        assert isinstance(self.config, QuittingConfig)
        return QuittingLearner(context, self.config.how)


class QuittingLearner(TallyLearner):
    """Counts its rounds itself: a learner that is started again has its three rounds as well."""

    def __init__(self, context: LearnerContext, how: str) -> None:
        super().__init__(context.weights, 0.0)
        self._how, self._rounds = how, 0

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        self._rounds += 1
        if self._rounds > 3:
            self._quit()
        return super().learn(batch, progress)

    def _quit(self) -> None:
        if self._how == "os._exit":
            os._exit(0)
        sys.exit()
