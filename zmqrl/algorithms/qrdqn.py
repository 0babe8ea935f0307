"""Quantile regression DQN (Dabney et al. 2018, arXiv 1710.10044): each action has quantiles of its return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm, QLearningConfig
from zmqrl.algorithms.q_learning.learner import QLearner
from zmqrl.config.sections import Positive
from zmqrl.learning import Batch
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor
from zmqrl.ops.targets import quantile_huber


@dataclass(frozen=True)
class QRDQNConfig(QLearningConfig):
    """The fields other than `kind: qrdqn`. The size of replay and the replay ratio are in `replay`."""

    learning_rate: Rate = 5e-4
    double: bool = False
    quantiles: Positive = 50
    """Quantiles of each action's return."""


class QRDQN(QLearningAlgorithm):
    """Discrete actions."""

    Config: ClassVar[type[Any]] = QRDQNConfig

    @property
    def atoms(self) -> int:
        return int(self.config.quantiles)

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the mean of the quantiles."""
        found, head = super().acting(), "zmqrl.acting.quantile:QuantileGreedy"
        return replace(found, head=head, options={**found.options, "quantiles": self.config.quantiles})

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return QRDQNLearner(self, context)


class QRDQNLearner(QLearner):
    """Quantile Huber loss with kappa 1, summed over the quantiles that are trained (equation 13, algorithm 1)."""

    def q(self, returns: Tensor) -> Tensor:
        return returns.mean(2)

    def losses(self, batch: Batch, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = quantile_huber(outputs, target)
        return losses, losses
