"""Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018, arXiv 1806.06920) for continuous actions.

The mean and the deviation have bounds of their own (Abdolmaleki et al. 2018, arXiv 1812.02256).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.mpo.duals import DUALS, GAUSSIAN, DualConfig, bounded, dual_group, improved, with_duals
from zmqrl.algorithms.sac import QActor, QActorConfig, QActorLearner, repeated
from zmqrl.config.sections import Positive
from zmqrl.learning import Batch, Group
from zmqrl.loading import Tensor, torch
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import gaussian, gaussian_divergences, mean_and_log_std
from zmqrl.spaces import SpaceKind


@dataclass(frozen=True)
class MPOConfig(DualConfig, QActorConfig):
    """The fields other than `kind: mpo`."""

    samples: Positive = 20
    """Actions that are drawn in each state, of the old policy."""
    target_update_every: Positive = 100
    """Updates after which the old policy and the target of the critic become those that are trained."""


class MPO(QActor, Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[MPOConfig]] = MPOConfig
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    critic_count: ClassVar[int] = 1
    config: MPOConfig

    def network(self) -> NetworkSpec:
        """`actor`; the critic and the dual variables, which only the learner has."""
        return with_duals(super().network(), self.config, GAUSSIAN)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return MPOLearner(self, context)


class MPOLearner(QActorLearner):
    """Steps critic, dual variables and actor in each update, and all targets in every `target_update_every`-th."""

    algorithm: MPO
    config: MPOConfig

    def __init__(self, algorithm: MPO, context: LearnerContext) -> None:
        norm, duals = algorithm.config.max_grad_norm, dual_group(algorithm.network())
        actor = Group("actor", max_grad_norm=norm, target=True)
        super().__init__(algorithm, context, (actor, Group("critics", algorithm.critics, norm, target=True), duals))

    def learning_rates(self, progress: Progress) -> Mapping[str, float]:
        """The dual variables have one of their own."""
        return {**super().learning_rates(progress), DUALS: self.config.dual_learning_rate}

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        """For the actions drawn in the states of a sample, and in those after them."""
        shape = (self.config.samples, self.algorithm.action_size)
        return {"noise": shape, "next_noise": shape}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Whether update `number` moves the targets."""
        return {"moves_targets": (number + 1) % self.config.target_update_every == 0}

    def train(self, batch: Batch, moves_targets: bool = False) -> Mapping[str, Tensor]:
        """Policy evaluation, E-step (the weights of samples) and M-step (the actor, near the old policy)."""
        net, config, obs = self.net, self.config, batch["obs"]
        with torch.no_grad():
            next_values = self.drawn(batch["next_obs"], batch["next_noise"])[3]
            target = batch["n_step_return"] + batch["discount"] * next_values.mean(1)
            old_mean, old_log_std, before, values = self.drawn(obs, batch["noise"])
        q = self.q(obs, self.stored(batch))[0].squeeze(1)
        loss_q = (q - target).square().mean()
        net.step("critics", loss_q)
        weight, temperature_loss = improved(net, config, values, torch.zeros_like(values))
        mean, log_std = mean_and_log_std(net("actor", obs))
        of_mean, of_deviation = (
            gaussian(repeated(one, config.samples), repeated(other, config.samples), before)[0].reshape(values.shape)
            for one, other in ((mean, old_log_std), (old_mean, log_std))
        )
        loss_fit = -(weight * (of_mean + of_deviation)).sum(1).mean()
        both = (kl.mean() for kl in gaussian_divergences(mean, log_std, old_mean, old_log_std))
        penalty, metrics = bounded(net, config, temperature_loss, dict(zip(GAUSSIAN, both, strict=True)))
        net.step("actor", loss_fit + penalty)
        if moves_targets:
            net.update_targets()
        return {"loss/q": loss_q, "loss/actor": loss_fit, "q_mean": q.mean(), **metrics}

    def drawn(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and log deviation `[B, A]` of the old policy, samples of it, and what the target has for them `[B, M]`.

        `noise [B, M, A]` is standard normal. The samples `[B * M, A]` are those before tanh.
        """
        mean, log_std = mean_and_log_std(self.net("actor", obs, target=True))
        before = (mean.unsqueeze(1) + log_std.exp().unsqueeze(1) * noise).flatten(0, 1)
        values = self.q(repeated(obs, noise.shape[1]), torch.tanh(before), target=True)[0]
        return mean, log_std, before, values.reshape(noise.shape[:2])
