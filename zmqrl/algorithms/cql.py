"""Conservative Q-learning on SAC (Kumar et al. 2020, arXiv 2006.04779), for data sets: CQL(H) with a fixed weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.sac import SAC, SACConfig, SACLearner, repeated
from zmqrl.config.sections import Positive
from zmqrl.learning import Batch, Noise
from zmqrl.loading import Tensor, torch
from zmqrl.ops.policies import tanh_gaussian


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """The fields other than `kind: cql`."""

    conservative_weight: Annotated[float, Ge(0)] = 5.0
    """Weight (alpha of the paper) of the loss that lowers the values of actions which the data lack; 0: SAC."""
    sampled_actions: Positive = 10
    """Continuous actions that are drawn per state for this loss: so many uniformly, and so many from the policy."""


class CQL(SAC, Algorithm):
    """Continuous actions within bounds, or discrete ones."""

    Config: ClassVar[type[CQLConfig]] = CQLConfig
    config: CQLConfig

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return CQLLearner(self, context)


class CQLLearner(SACLearner):
    """The critics of SAC, which prefer the actions of the data to all others."""

    config: CQLConfig

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        """Noise of SAC, and that of the sampled actions."""
        if self.algorithm.is_discrete:
            return super().noise()
        shape = (self.config.sampled_actions, self.algorithm.action_size)
        return {**super().noise(), "uniform": Noise(shape, "uniform"), "sampled": Noise(shape)}

    def critic_loss(self, batch: Batch, temperature: Tensor) -> dict[str, Tensor]:
        """Equation 4 of the paper: in addition the soft maximum over actions minus the value of that of the data."""
        metrics, action = super().critic_loss(batch, temperature), self.stored(batch)
        taken = [self.of_action(q, action).mean() for q in self.q(batch["obs"], action)]
        highest = [values.mean() for values in self.soft_maxima(batch)]
        gap = torch.stack(highest).sum() - torch.stack(taken).sum()
        loss = metrics["loss/q"] + self.config.conservative_weight * gap
        return {**metrics, "loss/q": loss, "loss/conservative": gap}

    def soft_maxima(self, batch: Batch) -> Sequence[Tensor]:
        """Log of the sum, or integral, of exp Q over all actions, of each critic `[B]`.

        The integral over actions in (-1, 1) is estimated by importance sampling (appendix F of the paper).
        """
        obs = batch["obs"]
        if self.algorithm.is_discrete:
            return [torch.logsumexp(q, 1) for q in self.q(obs, self.stored(batch))]
        count, size = self.config.sampled_actions, self.algorithm.action_size
        uniform, noise = 2.0 * batch["uniform"] - 1.0, batch["sampled"].flatten(0, 1)
        with torch.no_grad():
            drawn, log_prob = tanh_gaussian(repeated(self.net("actor", obs), count), noise)
        log_prob = log_prob.reshape(-1, count)
        log_density = torch.cat([torch.full_like(log_prob, -size * math.log(2.0)), log_prob], 1)
        action = torch.cat([uniform, drawn.reshape(uniform.shape)], 1).flatten(0, 1)
        values = (q.reshape(-1, 2 * count) for q in self.q(repeated(obs, 2 * count), action))
        return [torch.logsumexp(q - log_density, 1) - math.log(2.0 * count) for q in values]
