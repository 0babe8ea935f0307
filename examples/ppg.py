"""Phasic policy gradient (Cobbe et al. 2021, arXiv 2009.04416), for discrete actions.

PPO, and after every `phase_batches` batches an auxiliary phase on all of them: a second head of the policy learns their
values, which trains the layers that both heads share, while the policy itself stays near what it was.
Here: `zmqrl train --env CartPole-v1 --algo ppg:PPG`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress
from zmqrl.config.sections import Fraction, Positive
from zmqrl.learning import Batch, BatchLearner, Group, LearnResult
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical, clipped_gain
from zmqrl.ops.returns import generalised_advantages
from zmqrl.replay.base import SegmentBatch


@dataclass(frozen=True)
class PPGConfig:
    learning_rate: float = 5e-4
    gamma: Fraction = 0.99
    gae_lambda: Fraction = 0.95
    clip: float = 0.2
    entropy_bonus: float = 0.01
    epochs: Positive = 1
    minibatch_size: Positive = 64
    phase_batches: Positive = 32
    phase_epochs: Positive = 6
    clone: float = 1.0
    """Weight of the divergence of the policy in the auxiliary phase (beta_clone)."""


class PPG(Algorithm):
    """`aux` is the second head of the policy: it shares all layers of `actor` but the last one."""

    Config = PPGConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = True
    actions = frozenset({"discrete"})

    @property
    def held_batches(self) -> int:
        batches: int = self.config.phase_batches
        return batches

    def network(self) -> NetworkSpec:
        section, obs = self.network_section, self.env.observation
        *shared, last = tower("actor", section, obs, self.env.action.n, output_gain=0.01)
        aux, critic = (tower(name, section, obs, 1, output_gain=1.0) for name in ("aux", "critic"))
        towers = (("actor", (*shared, last)), ("aux", (*shared, aux[-1])), ("critic", critic))
        return NetworkSpec(towers, learner_only=("aux", "critic"))

    def acting(self) -> ActingSpec:
        layers, extras = self.network().tower("actor"), (self.extra("log_prob"),)
        return ActingSpec(layers, "categorical", self.env.action, self.env.observation, extras, input=self.input)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return PPGLearner(self, context, (Group("actor", max_grad_norm=0.5), Group("aux"), Group("critic")))


class PPGLearner(BatchLearner):
    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        columns, config = batch.columns, self.config
        obs = self.observations(columns["obs"])
        value = self.net("critic", obs.flatten(0, 1)).reshape(obs.shape[:2]).cpu().numpy()
        flags = columns["terminated"], columns["truncated"], columns["valid"]
        advantage = generalised_advantages(columns["reward"], value, *flags, config.gamma, config.gae_lambda)
        more = {"obs": obs[:-1], "advantage": advantage, "target": advantage + value[:-1]}
        return self.rows(batch, "action", "log_prob", **more)

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """The policy phase is one batch. Algorithm 1 of the paper."""
        result = super().learn(batch, progress)
        assert self.replay is not None and progress.version is not None
        if (progress.version.n + 1) % self.config.phase_batches:
            return result
        (held,) = self.replay.batches(self.replay.segments)
        with torch.no_grad():
            rows = self.prepare(held, progress)
            rows["before"] = self.net("actor", rows["obs"]).log_softmax(1)
        progress = replace(progress, updates=progress.updates + result.updates)
        phase = self.fit(rows, progress, self.config.phase_epochs, is_phase=True)
        return LearnResult(result.updates + phase.updates, {**result.metrics, **phase.metrics})

    def train(self, batch: Batch, is_phase: bool = False) -> Mapping[str, Tensor]:
        found = self.auxiliary(batch) if is_phase else self.policy(batch)
        loss_critic = self.error("critic", batch)
        self.net.step("critic", loss_critic)
        return {**found, "loss/critic": loss_critic}

    def policy(self, batch: Batch) -> dict[str, Tensor]:
        log_prob, entropy = categorical(self.net("actor", batch["obs"]), batch["action"])
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        gain = clipped_gain((log_prob - batch["log_prob"]).exp(), advantage, self.config.clip)
        loss = -(gain + self.config.entropy_bonus * entropy).mean()
        self.net.step("actor", loss)
        return {"loss/actor": loss}

    def auxiliary(self, batch: Batch) -> dict[str, Tensor]:
        """The joint loss. It is computed twice: a step uses up the graph of its loss, and two groups have this one."""
        self.net.step("aux", self.error("aux", batch))
        error, now = self.error("aux", batch), self.net("actor", batch["obs"]).log_softmax(1)
        divergence = (batch["before"].exp() * (batch["before"] - now)).sum(1).mean()
        self.net.step("actor", error + self.config.clone * divergence)
        return {"loss/aux": error, "divergence": divergence}

    def error(self, tower: str, batch: Batch) -> Tensor:
        return 0.5 * (self.net(tower, batch["obs"]).squeeze(1) - batch["target"]).square().mean()
