"""DQN and its parts, each an option: double, dueling, n-step, prioritised, noisy, Munchausen.

Mnih et al. 2015; van Hasselt et al. 2016; Wang et al. 2016; Schaul et al. 2016; Vieillard et al. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm, QLearningConfig
from zmqrl.algorithms.q_learning.learner import QLearner
from zmqrl.learning import Batch
from zmqrl.loading import Tensor
from zmqrl.networks.kinds.base import without_backward


@dataclass(frozen=True)
class DQNConfig(QLearningConfig):
    """The fields other than `kind: dqn`. The size of replay and the replay ratio are in `replay`."""

    loss: Literal["huber", "mse"] = "huber"
    """On the TD error; `mse` is 1/2 delta^2, so that both agree for small errors."""
    optimiser: Literal["adam", "adamw"] = "adam"
    """`adamw` decays weights apart from the gradient (Loshchilov & Hutter 2019)."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """adamw only."""

    @property
    def decay(self) -> float:
        """Weight decay; 0: without."""
        return self.weight_decay if self.optimiser == "adamw" else 0.0


class DQN(QLearningAlgorithm):
    """Deep Q-learning for discrete actions."""

    Config: ClassVar[type[Any]] = DQNConfig
    config: DQNConfig

    @property
    def executors(self) -> tuple[str, ...]:
        """Gradients are written out for linear layers with tanh or relu, without `munchausen`."""
        is_manual = not without_backward(self.network().tower("q")) and self.config.munchausen is None
        return (*(("manual",) if is_manual else ()), "eager", "compiled")

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        if context.executor == "manual":
            from zmqrl.algorithms.q_learning.manual import ManualDQNLearner  # it imports torch

            return ManualDQNLearner(self, context)
        return DQNLearner(self, context)


class DQNLearner(QLearner):
    """The loss of the TD error."""

    config: DQNConfig

    def q(self, returns: Tensor) -> Tensor:
        return returns.squeeze(2)

    def losses(self, batch: Batch, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        error = (outputs - target).squeeze(1)
        slope = (error.clamp(-1.0, 1.0) if self.config.loss == "huber" else error).detach()
        return slope * (error - 0.5 * slope), error.abs()
