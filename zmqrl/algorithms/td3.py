"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477): three additions to DDPG.

The lower of two critics, noise on the actions of the target, and an actor that moves less often than the critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.ddpg import DDPG, DDPGConfig, DDPGLearner
from zmqrl.config.sections import Positive
from zmqrl.learning import Batch
from zmqrl.loading import Tensor


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """The fields other than `kind: td3`. Defaults are those of Stable-Baselines3."""

    policy_delay: Positive = 2
    """Updates of the critics per update of the actor and of the targets."""
    target_noise: Annotated[float, Ge(0)] = 0.2
    """Standard deviation of the noise on the target's actions, in the unit of `exploration_noise`."""
    target_noise_clip: Annotated[float, Ge(0)] = 0.5
    """Bound of that noise."""


class TD3(DDPG, Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[TD3Config]] = TD3Config
    critic_count: ClassVar[int] = 2
    config: TD3Config

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return TD3Learner(self, context)


class TD3Learner(DDPGLearner):
    """Steps the critics in each update, and the actor and the targets in every `policy_delay`-th."""

    config: TD3Config

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        """For the target's actions."""
        return {"next_noise": (self.algorithm.action_size,)}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Whether update `number` moves the actor."""
        return {"moves_actor": (number + 1) % self.config.policy_delay == 0}

    def next_action(self, batch: Batch) -> Tensor:
        """Actions of DDPG with clipped noise: algorithm 1 of the paper."""
        bound = self.config.target_noise_clip
        noise = (batch["next_noise"] * self.config.target_noise).clamp(-bound, bound)
        return (super().next_action(batch) + noise).clamp(-1.0, 1.0)
