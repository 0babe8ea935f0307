"""V-MPO (Song et al. 2020, arXiv 1909.12238): MPO on-policy, with advantages in place of values of drawn actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.mpo.duals import DUALS, GAUSSIAN, Above0, DualConfig, bounded, dual_group, improved, with_duals
from zmqrl.algorithms.policy_gradient.actor_critic import ActorCriticLearner
from zmqrl.algorithms.policy_gradient.plan import ActorCritic, ActorCriticConfig
from zmqrl.algorithms.start.defaults import Sections, on_policy_defaults
from zmqrl.config.sections import Fraction, Positive
from zmqrl.learning import Adam, Batch, Optimiser
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import FORBIDDEN, gaussian_divergences, masked
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, EnvSpec


@dataclass(frozen=True)
class VMPOConfig(DualConfig, ActorCriticConfig):
    """The fields other than `kind: vmpo`."""

    normalise_advantage: bool = False
    """Mean 0 and deviation 1 per minibatch."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    epochs: Positive = 4
    """Passes over each batch."""
    minibatch_size: Positive | None = 128
    """Rows per update, at most; null: the whole batch."""
    epsilon_policy: Above0 = 0.01
    """Discrete actions: bound of the KL divergence of the policy, in nats (M-step)."""
    alpha_policy_init: Above0 = 5.0
    """First multiplier of this bound."""


class VMPO(ActorCritic, Algorithm):
    """On-policy maximum a posteriori policy optimisation (Song et al. 2020)."""

    Config: ClassVar[type[VMPOConfig]] = VMPOConfig
    config: VMPOConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """8 envs of 128 steps, with normalised observations and rewards."""
        sections = on_policy_defaults(env)
        normalise_obs = network_input(env.observation).statistics_size > 0
        sections["algorithm"] = {"normalise_obs": normalise_obs, "normalise_reward": True}
        return sections

    @property
    def optimiser(self) -> Optimiser:
        return Adam()

    def network(self) -> NetworkSpec:
        """That of an actor-critic; the dual variables, which only the learner has."""
        return with_duals(super().network(), self.config, ("policy",) if self.env.action.choices else GAUSSIAN)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return VMPOLearner(self, context)


class VMPOLearner(ActorCriticLearner):
    """The old policy is the newest one before the updates of a batch."""

    algorithm: VMPO
    config: VMPOConfig

    def __init__(self, algorithm: VMPO, context: LearnerContext) -> None:
        super().__init__(algorithm, context, (dual_group(algorithm.network()),))

    def learning_rates(self, progress: Progress) -> Mapping[str, float]:
        """The dual variables have one of their own."""
        return {**super().learning_rates(progress), DUALS: self.config.dual_learning_rate}

    def estimate(self, batch: SegmentBatch, obs: Tensor, reward: Array) -> dict[str, Array]:
        """Also the outputs of the old policy, and what a row counts: only the larger half of the advantages does.

        In async a row counts as often as the old policy has its action, in comparison with the one that acted, and at
        most once.
        """
        found, valid = super().estimate(batch, obs, reward), batch.columns["valid"]
        outputs, log_prob = self.newest(batch, obs)
        if not self.algorithm.env.action.choices:
            outputs = torch.cat((outputs, self.net.parameter("log_std").expand_as(outputs)), 1)
        middle = np.median(found["advantage"][valid]) if valid.any() else 0.0
        counts = valid & (found["advantage"] >= middle)
        log_share = np.where(counts, np.minimum(log_prob - batch.columns["log_prob"], 0.0), FORBIDDEN)
        old = outputs.reshape(*valid.shape, -1).cpu().numpy()
        return {**found, "old": old, "log_share": log_share.astype(np.float32)}

    def gain(self, log_prob: Tensor, ratio: Tensor, advantage: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Psi log pi (equation 3), times the number of rows; and the loss of the temperature (equation 4)."""
        del ratio
        sets = (numbers.unsqueeze(0) for numbers in (advantage, rows["log_share"]))
        weight, loss = improved(self.net, self.config, *sets)
        return weight[0] / self.mean(weight[0], rows) * log_prob, {"loss/temperature": loss}

    def loss(self, outputs: Tensor, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the policy with the penalty of its divergence (equation 5). The dual variables are stepped."""
        loss, metrics = super().loss(outputs, rows)
        divergences = {name: self.mean(kl, rows) for name, kl in self.divergences(outputs, rows).items()}
        penalty, duals = bounded(self.net, self.config, metrics["loss/temperature"], divergences)
        return loss + penalty, {**metrics, **duals}

    def divergences(self, outputs: Tensor, rows: Batch) -> dict[str, Tensor]:
        """KL(old || new) `[B]` by name, for outputs of the tower `actor`."""
        choices, old = self.algorithm.env.action.choices, rows["old"]
        if not choices:
            both = gaussian_divergences(outputs, self.net.parameter("log_std"), *old.chunk(2, 1))
            return dict(zip(GAUSSIAN, both, strict=True))
        before, now = (
            torch.cat([p.log_softmax(1) for p in torch.split(masked(logits, rows.get("mask")), list(choices), 1)], 1)
            for logits in (old, outputs)
        )
        return {"policy": (before.exp() * (before - now)).sum(1)}
