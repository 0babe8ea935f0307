"""Bootstrapped DQN (Osband et al. 2016, arXiv 1602.04621): each episode follows one of several Q-functions.

They share all layers but the last one. The worker draws which of them learn from a row, and stores it.
Here: `zmqrl train --env CartPole-v1 --algo bootstrapped_dqn:BootstrappedDQN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import Head
from zmqrl.acting.spec import ActingSpec, ActingState, NoiseSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.config.sections import Fraction, Positive
from zmqrl.learning import Batch, Group, ReplayLearner
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Array

MEMBER, MASK = "member", "mask"
"""State: the number of the Q-function that the episode follows, counted from 1. Column: which of them learn."""


@dataclass(frozen=True)
class BootstrappedConfig:
    learning_rate: float = 1e-3
    gamma: Fraction = 0.99
    batch_size: Positive = 64
    tau: Fraction = 0.01
    members: Positive = 10
    share: Fraction = 0.5
    """Probability that a member learns from a row."""


class OneMember(Head):
    """Outputs are those of all members, one after the other. The greedy action is that with most votes."""

    actions = frozenset({"discrete"})
    fills = frozenset({MASK})
    takes = frozenset({"members", "share"})

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        noise, member, values = context.noise, context.state[MEMBER][:, 0], self.values(outputs)
        drawn = 1.0 + np.floor(noise.uniform[t, :, 0] * values.shape[1])
        member[...] = np.where(member == 0.0, drawn, member)  # 0: an episode begins
        context.extras[MASK][t] = noise.further[MASK][t] < self.spec.options["share"]
        actions: Array = values[np.arange(self.rows), member.astype(np.int64) - 1].argmax(1)
        return actions

    def act_greedily(self, outputs: Array) -> Array:
        votes = self.values(outputs).argmax(2)
        counts = (votes[:, :, None] == np.arange(self.spec.action.n)).sum(1)
        actions: Array = counts.argmax(1)
        return actions

    def values(self, outputs: Array) -> Array:
        """`[N, members, n]`."""
        return outputs.reshape(self.rows, int(self.spec.options["members"]), self.spec.action.n)


class BootstrappedDQN(Algorithm):
    Config = BootstrappedConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self) -> NetworkSpec:
        outputs = self.config.members * self.env.action.n
        return NetworkSpec((("q", tower("q", self.network_section, self.env.observation, outputs, output_gain=1.0)),))

    def acting(self) -> ActingSpec:
        members = self.config.members
        return ActingSpec(
            layers=self.network().tower("q"),
            head=f"{__name__}:OneMember",
            action=self.env.action,
            observation=self.env.observation,
            extras=(self.extra(MASK, shape=(members,)),),
            input=self.input,
            options={"members": members, "share": self.config.share},
            noise=(NoiseSpec(MASK, members, "uniform"),),
            state=(ActingState(MEMBER, 1),),
        )

    def replay(self) -> ReplaySpec:
        return ReplaySpec()

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return BootstrappedLearner(self, context, (Group("q", max_grad_norm=10.0, target=True),))


class BootstrappedLearner(ReplayLearner):
    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Double Q-learning of each member. The mean over members divides the gradient of their common layers."""
        members = self.config.members
        with torch.no_grad():
            best = self.values(batch["next_obs"]).argmax(2, keepdim=True)
            following = self.values(batch["next_obs"], target=True).gather(2, best).squeeze(2)
            target = batch["n_step_return"].unsqueeze(1) + batch["discount"].unsqueeze(1) * following
        action = batch["action"].reshape(-1, 1, 1).expand(-1, members, 1)
        q = self.values(batch["obs"]).gather(2, action).squeeze(2)
        loss = (batch[MASK] * (q - target).square()).mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss/q": loss, "spread": q.std(1).mean()}

    def values(self, obs: Tensor, target: bool = False) -> Tensor:
        """`[B, members, n]`."""
        return self.net("q", obs, target=target).reshape(-1, self.config.members, self.algorithm.env.action.n)
