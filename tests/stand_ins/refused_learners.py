"""Algorithms whose learner rejects the configuration: when it is built, or once it has trained."""

from __future__ import annotations

import time

from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.bench.noop import NoUpdate, _NoUpdateLearner
from zmqrl.errors import ConfigError
from zmqrl.learner.reporting import METRICS_EVERY_S
from zmqrl.replay.base import SegmentBatch

FAULT = "algorithm: no learner for this network"


class Refused(NoUpdate):
    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        raise ConfigError(FAULT)


class RefusedLater(NoUpdate):
    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return _RefusingLearner(context.weights)


class _RefusingLearner(_NoUpdateLearner):
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        if progress.version.n >= 2:
            raise ConfigError(FAULT)
        time.sleep(METRICS_EVERY_S)  # the launcher knows of env steps by the next round
        return super().learn(batch, progress)
