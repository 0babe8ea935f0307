"""Algorithms whose learner rejects the configuration: when it is built, or in a round."""

from __future__ import annotations

from typing import Any

from zmqrl.algorithms.base import LearnerContext, OnPolicyLearner
from zmqrl.bench.noop import NoUpdate
from zmqrl.errors import ConfigError

FAULT = "algorithm: no learner for this network"


class Refused(NoUpdate):
    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        raise ConfigError(FAULT)


class RefusedLater(NoUpdate):
    """In its third round."""

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        learner: Any = super().learner(context)
        learn = learner.learn

        def refuse(batch: Any, progress: Any) -> Any:
            if progress.version.n >= 2:
                raise ConfigError(FAULT)
            return learn(batch, progress)

        learner.learn = refuse
        return learner  # type: ignore[no-any-return]
