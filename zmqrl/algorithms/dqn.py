"""DQN and its parts, each an option: double, dueling, n-step, prioritised, noisy, Munchausen, and those of Ape-X.

Mnih et al. 2015; van Hasselt et al. 2016; Wang et al. 2016; Schaul et al. 2016; Vieillard et al. 2020; Horgan et al.
2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm, QLearningConfig
from zmqrl.algorithms.q_learning.learner import QLearner
from zmqrl.config.sections import ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import Batch
from zmqrl.loading import Tensor
from zmqrl.networks.kinds.base import without_backward
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import ModeName

PRIORITY = "priority"
"""Column of the priorities of workers."""


@dataclass(frozen=True)
class DQNConfig(QLearningConfig):
    """The fields other than `kind: dqn`. The size of replay and the replay ratio are in `replay`."""

    loss: Literal["huber", "mse"] = "huber"
    """On the TD error; `mse` is 1/2 delta^2, so that both agree for small errors."""
    worker_priorities: bool = False
    """Workers compute the first priority of a row, its TD error (Ape-X); false: it is the largest so far. It needs
    `prioritised`."""
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

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` also when priorities of workers would not be used."""
        super().check(mode, vector_envs, replay)
        if self.config.worker_priorities and self.config.prioritised is None:
            key, other = ("algorithm", "worker_priorities"), ("algorithm", "prioritised")
            fix = "set algorithm.prioritised: {}"
            raise ConfigError("needs algorithm.prioritised", key=key, value="true", fix=fix, others=(other,))

    @property
    def executors(self) -> tuple[str, ...]:
        """Gradients are written out for linear layers with tanh or relu, without `munchausen` and `intrinsic`."""
        is_plain = self.config.munchausen is None and self.config.intrinsic is None
        is_manual = is_plain and not without_backward(self.network().tower("q"))
        return (*(("manual",) if is_manual else ()), "eager", "compiled")

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the q values, with `worker_priorities` also the priorities."""
        found, config = super().acting(), self.config
        if not config.worker_priorities:
            return found
        head, options = "zmqrl.acting.first_priority:FirstPriority", {"gamma": config.gamma, "n_step": config.n_step}
        return replace(found, head=head, options={**found.options, **options}, extras=(self.extra(PRIORITY),))

    def replay(self) -> ReplaySpec:
        return replace(super().replay(), first_priority=PRIORITY if self.config.worker_priorities else None)

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
