"""An algorithm on policy with several optimisers and targets, and with noise and variants of its minibatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, Progress
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.learning import Batch, BatchLearner, Group, Noise, RAdam, RMSProp
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import MODES, ModeName


@dataclass(frozen=True)
class SeveralTargetsConfig:
    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: float = 1e-3
    epochs: int = 2
    minibatch_size: int = 100


class SeveralTargets(Algorithm):
    Config: ClassVar[type[SeveralTargetsConfig]] = SeveralTargetsConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = True
    actions = frozenset({"discrete"})

    def network(self) -> NetworkSpec:
        section, obs = self.network_section, self.env.observation
        actor = tower("actor", section, obs, self.env.action.n, output_gain=0.01)
        towers = (("actor", actor), ("critic", tower("critic", section, obs, 1, output_gain=1.0)))
        return NetworkSpec(towers, (("scale", (), 1.0),), learner_only=("critic", "scale"))

    def acting(self) -> ActingSpec:
        layers, extras = self.network().tower("actor"), (self.extra("log_prob"),)
        return ActingSpec(layers, "categorical", self.env.action, self.env.observation, extras, input=self.input)

    def learner(self, context: LearnerContext) -> SeveralTargetsLearner:
        actor = Group("actor", optimiser=RAdam(), target=("old", "average"))
        critic = Group("critic", ("critic", "scale"), 1.0, RMSProp(0.95, 1e-3, 0.5, True), target=True)
        return SeveralTargetsLearner(self, context, (actor, critic))


class SeveralTargetsLearner(BatchLearner):
    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        return {"epsilon": (), "level": Noise((2,), "uniform")}

    def variant(self, number: int) -> Mapping[str, bool]:
        return {"moves_old": number % 3 == 2, "moves_critic": number % 5 == 4}

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        return self.rows(batch, "obs", "action", "log_prob", reward=batch.columns["reward"])

    def train(self, batch: Batch, moves_old: bool, moves_critic: bool) -> Mapping[str, Tensor]:
        net, obs = self.net, batch["obs"]
        with torch.no_grad():
            scale = net.parameter("scale", target=True)
            target = batch["reward"] + scale * net("critic", obs, target=True).squeeze(1) * batch["level"].mean(1)
        value = net("critic", obs).squeeze(1) * net.parameter("scale") + 0.01 * batch["epsilon"]
        net.step("critic", (value - target).square().mean())
        log_prob, _ = categorical(net("actor", obs), batch["action"])
        old, average = (categorical(net("actor", obs, target=name), batch["action"])[0] for name in ("old", "average"))
        distance = (log_prob - 0.5 * (old + average)).square() + (log_prob - batch["log_prob"]).square()
        net.step("actor", (distance - log_prob * target).mean())
        net.update_targets(0.05, target="average")
        if moves_old:
            net.update_targets(target="old")
        if moves_critic:
            net.update_targets(1.0, "critic")
        return {"value": value.mean()}
