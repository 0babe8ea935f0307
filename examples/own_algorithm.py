"""Your own algorithm in one file: REINFORCE with rewards to go. Here: `zmqrl train own_algorithm.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, OnPolicyLearner
from zmqrl.learning import Batch, BatchLearner, Group, LearnerContext, Progress
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array


@dataclass(frozen=True)
class ReinforceConfig:
    """The keys of the section `algorithm`, in addition to `kind`."""

    learning_rate: Annotated[float, Gt(0)] = 3e-3
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99


class Reinforce(Algorithm):
    """Discrete actions."""

    Config = ReinforceConfig
    modes = frozenset({"single", "sync"})
    on_policy = True
    actions = frozenset({"discrete"})

    def network(self) -> NetworkSpec:
        layers = tower("policy", self.network_section, self.env.observation, self.env.action.n, output_gain=0.01)
        return NetworkSpec((("policy", layers),))

    def acting(self) -> ActingSpec:
        layers = self.network().tower("policy")
        return ActingSpec(
            layers=layers,
            head="categorical",
            action=self.env.action,
            observation=self.env.observation,
            input=self.input,
        )

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return ReinforceLearner(self, context, groups=(Group("policy"),))


class ReinforceLearner(BatchLearner):
    """One step of Adam per batch."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, torch.Tensor]:
        """The rows of the batch that are steps: after an episode there is one that only resets."""
        return self.rows(batch, "obs", "action", value=rewards_to_go(batch.columns, self.config.gamma))

    def train(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The loss in plain torch, of the network that acts."""
        advantage = (batch["value"] - batch["value"].mean()) / (batch["value"].std() + 1e-8)
        log_prob = torch.log_softmax(self.net("policy", batch["obs"]), 1)
        loss = -(advantage * log_prob.gather(1, batch["action"][:, None]).squeeze(1)).mean()
        self.net.step("policy", loss)
        return {"loss/policy": loss}


def rewards_to_go(columns: Mapping[str, Array], gamma: float) -> Array:
    """Discounted rewards `[T, E]` until the end of the episode or of the segment."""
    over = columns["terminated"] | columns["truncated"]
    returns, running = np.zeros_like(columns["reward"]), np.zeros(over.shape[1], np.float32)
    for t in range(len(over) - 1, -1, -1):
        running = columns["reward"][t] + gamma * running * ~over[t]
        returns[t] = running
    return returns
