"""Behaviour cloning (Pomerleau 1991, doi 10.1162/neco.1991.3.1.88): the actions of a data set by maximum likelihood.

The policy is that of PPO, whose runs may start from its versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.start.defaults import Sections, on_policy_defaults
from zmqrl.config.sections import FORBID_UNKNOWN, Positive
from zmqrl.learning import Batch, Group, Rate, ReplayLearner
from zmqrl.loading import Tensor
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical, gaussian, multi_categorical
from zmqrl.replay.base import AnySample, Replay
from zmqrl.types import EnvSpec, ModeName

LOG_STD = "log_std"
"""Parameter of continuous policies: a log deviation for each dimension of an action."""
LOG_STD_MIN = -5.0
"""Least value of it in the loss: with the actions of a deterministic policy it would decrease without end."""


@dataclass(frozen=True)
class BCConfig:
    """The fields other than `kind: bc`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Adam's step size."""
    batch_size: Positive = 256
    """Rows per update."""


class BC(Algorithm):
    """Any actions; rewards are not read."""

    Config: ClassVar[type[BCConfig]] = BCConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset({"offline"})
    on_policy: ClassVar[bool] = False
    config: BCConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Mode offline, and the network of PPO."""
        sections = on_policy_defaults(env)
        return {**sections, "run": {"mode": "offline"}, "env": {**sections["env"], "segment_steps": 16}}

    def network(self) -> NetworkSpec:
        """Tower `actor`; `log_std` when actions are continuous."""
        action = self.env.action
        size = sum(action.choices) or math.prod(action.shape)
        actor = tower("actor", self.network_section, self.env.observation, size, output_gain=0.01)
        return NetworkSpec((("actor", actor),), () if action.choices else ((LOG_STD, (size,), 0.0),))

    def acting(self) -> ActingSpec:
        """Categorical or Gaussian actions."""
        action = self.env.action
        several = "multi_categorical" if action.choices else "gaussian"
        return ActingSpec(
            layers=self.network().tower("actor"),
            head="categorical" if action.kind == "discrete" else several,
            action=action,
            observation=self.env.observation,
            arrays=() if action.choices else (LOG_STD,),
            input=self.input,
        )

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return BCLearner(self, context)


class BCLearner(ReplayLearner):
    """Steps the policy alone."""

    algorithm: BC
    config: BCConfig

    def __init__(self, algorithm: BC, context: LearnerContext, further: tuple[Group, ...] = ()) -> None:
        """`further` are groups of other towers than the policy."""
        free = (name for name, _, _ in algorithm.network().parameters)
        super().__init__(algorithm, context, (Group("actor", ("actor", *free)), *further))

    def sample(self, replay: Replay, number: int) -> AnySample:
        """Rows, whose rewards are not summed."""
        return replay.sample(self.config.batch_size, 1, 1.0, number)

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """The mean of -log p(a | s)."""
        log_prob, entropy = self.policy(batch)
        loss = -log_prob.mean()
        self.net.step("actor", loss)
        return {"loss/actor": loss, "entropy": entropy.mean()}

    def policy(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each action `[B]`."""
        outputs, space = self.net("actor", batch["obs"]), self.algorithm.env.action
        if space.kind == "discrete":
            return categorical(outputs, batch["action"])
        if space.choices:
            return multi_categorical(outputs, batch["action"], space.choices)
        return gaussian(outputs, self.net.parameter(LOG_STD).clamp(min=LOG_STD_MIN), batch["action"].flatten(1))
