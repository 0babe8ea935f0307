"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269): SAC with critics of quantiles.

The target is made of the quantiles of all critics without the largest ones, which bounds overestimation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.sac import SAC, SACConfig, SACLearner
from zmqrl.config.sections import Count, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import Batch
from zmqrl.loading import Tensor, torch
from zmqrl.ops.targets import quantile_huber
from zmqrl.spaces import SpaceKind
from zmqrl.types import ModeName


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """The fields other than `kind: tqc`. Defaults are those of sb3-contrib; the paper has 5 critics."""

    critics: Positive = 2
    """Number of critics."""
    quantiles: Positive = 25
    """Quantiles of the return that a critic predicts."""
    dropped: Count = 2
    """Quantiles per critic that the target leaves out: the largest `critics * dropped` of all."""


class TQC(SAC, Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[TQCConfig]] = TQCConfig
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    config: TQCConfig

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when the target has no quantile."""
        del mode, vector_envs, replay
        if self.config.dropped >= self.config.quantiles:
            others, what = (("algorithm", "quantiles"),), f"must be below algorithm.quantiles {self.config.quantiles}"
            raise ConfigError(what, key=("algorithm", "dropped"), value=str(self.config.dropped), others=others)

    @property
    def critics(self) -> tuple[str, ...]:
        """`q1`, `q2`, ..."""
        return tuple(f"q{number}" for number in range(1, 1 + self.config.critics))

    @property
    def critic_outputs(self) -> int:
        """Quantiles."""
        return self.config.quantiles

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return TQCLearner(self, context)


class TQCLearner(SACLearner):
    """Quantile Huber loss of each critic with kappa 1."""

    config: TQCConfig

    def critic_loss(self, batch: Batch, temperature: Tensor) -> dict[str, Tensor]:
        """Equations 10 to 13 of the paper, summed over the critics."""
        config = self.config
        with torch.no_grad():
            next_action, next_log_prob = self.policy(batch["next_obs"], batch["next_noise"])
            quantiles = torch.cat(tuple(self.q(batch["next_obs"], next_action, target=True)), 1).sort(1).values
            kept = quantiles[:, : config.critics * (config.quantiles - config.dropped)]
            following = kept - (temperature * next_log_prob).unsqueeze(1)
            target = batch["n_step_return"].unsqueeze(1) + batch["discount"].unsqueeze(1) * following
        q = self.q(batch["obs"], self.stored(batch))
        loss = torch.stack([quantile_huber(one, target).mean() for one in q]).sum() / config.quantiles
        return {"loss/q": loss, "q_mean": q[0].mean()}

    def value(self, obs: Tensor, action: Tensor, target: bool = False) -> Tensor:
        """The mean of all quantiles `[B]`, which the actor maximises."""
        return torch.cat(tuple(self.q(obs, action, target)), 1).mean(1)
