"""Soft actor-critic with two critics and a learned temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le

from zmqrl.acting.heads import UNIFORM
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.defaults import Sections, capacity_of, network_of, off_policy_defaults, total_of
from zmqrl.config.sections import FORBID_UNKNOWN, Count, Fraction, Positive
from zmqrl.learning.executor import Batch
from zmqrl.learning.groups import Group
from zmqrl.learning.learners import ReplayLearner
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import tanh_gaussian
from zmqrl.replay.spec import ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName

LOG_TEMPERATURE = "log_temperature"
"""Parameter and group of a learned temperature."""


@dataclass(frozen=True)
class SACConfig:
    """The fields other than `kind: sac`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Adam's step size, of actor, critics and temperature."""
    gamma: Fraction = 0.99
    """Discount per step."""
    batch_size: Positive = 256
    """Rows per update."""
    n_step: Positive = 1
    """Rewards summed before bootstrapping."""
    warmup_env_steps: Count = 1_000
    """Env steps with uniform actions at the start, usually as many as `replay.learning_starts`."""
    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the critics mixed into their targets in each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy; `auto` learns it, beginning with 1."""
    target_entropy: float | Literal["auto"] = "auto"
    """What `temperature: auto` aims at, in nats; `auto` is minus the number of action dimensions."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Bound of each gradient's norm; null switches it off."""


class SAC(Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[SACConfig]] = SACConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    needs_bounds: ClassVar[bool] = True
    config: SACConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Stable-Baselines3: an update per env step, 256 x 256 units."""
        sections = off_policy_defaults(env, segment_steps=4)
        sections["run"]["total_env_steps"] = total_of(env, 200_000)
        sections["network"] = network_of(env, (256, 256), "relu")
        sections["replay"] = {"capacity": capacity_of(env, 200_000), "learning_starts": 1_000, "ratio": 1.0}
        return sections

    def network(self) -> NetworkSpec:
        """`actor`; `q1`, `q2` and, where it is learned, `log_temperature`, which only the learner has."""
        section, obs = self.network_section, self.env.observation
        actor = tower("actor", section, obs, 2 * self.action_size, output_gain=0.0, orthogonal=False)
        critics = (
            (name, tower(name, section, obs, 1, output_gain=0.0, orthogonal=False, joined=self.action_size))
            for name in ("q1", "q2")
        )
        free = ((LOG_TEMPERATURE, (), 0.0),) if self.config.temperature == "auto" else ()
        learner_only = ("q1", "q2", *(name for name, _, _ in free))
        return NetworkSpec((("actor", actor), *critics), free, learner_only)

    def acting(self) -> ActingSpec:
        """Tanh of a Gaussian, scaled to the bounds."""
        return ActingSpec(
            layers=self.network().tower("actor"),
            head="squashed_gaussian",
            action=self.env.action,
            observation=self.env.observation,
            noise=(NoiseSpec(UNIFORM, self.action_size, "uniform"),),
            input=self.input,
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`uniform` for the workers: the share of uniform actions."""
        return {UNIFORM: float(progress.env_steps < self.config.warmup_env_steps)}

    def replay(self) -> ReplaySpec:
        return ReplaySpec(n_step=self.config.n_step)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return math.prod(self.env.action.shape)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return SACLearner(self, context)


class SACLearner(ReplayLearner):
    """Steps temperature, critics and actor in each update, in the order of Stable-Baselines3."""

    algorithm: SAC
    config: SACConfig

    def __init__(self, algorithm: SAC, context: LearnerContext) -> None:
        norm, temperature = algorithm.config.max_grad_norm, algorithm.config.temperature
        groups = (
            Group("actor", max_grad_norm=norm),
            Group("critics", ("q1", "q2"), max_grad_norm=norm, target=True),
            *((Group(LOG_TEMPERATURE),) if temperature == "auto" else ()),
        )
        super().__init__(algorithm, context, groups)
        self._fixed = None if temperature == "auto" else self.tensor(np.float32(math.log(temperature)))
        size, entropy = algorithm.action_size, algorithm.config.target_entropy
        self._target_entropy = -float(size) if entropy == "auto" else entropy
        self._low, self._high = (self.tensor(side) for side in (algorithm.env.action.low, algorithm.env.action.high))

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        """For the actions drawn in the states of a sample, and in those after them."""
        size = (self.algorithm.action_size,)
        return {"noise": size, "next_noise": size}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Equations 5 to 7 and 18 of the paper."""
        net, fixed = self.net, self._fixed
        action, log_prob = tanh_gaussian(net("actor", batch["obs"]), batch["noise"])
        temperature = (net.parameter(LOG_TEMPERATURE).detach() if fixed is None else fixed).exp()
        if fixed is None:
            surplus = (log_prob + self._target_entropy).detach()
            net.step(LOG_TEMPERATURE, -(net.parameter(LOG_TEMPERATURE) * surplus).mean())
        with torch.no_grad():
            next_action, next_log_prob = tanh_gaussian(net("actor", batch["next_obs"]), batch["next_noise"])
            next_q = torch.minimum(*self._q(batch["next_obs"], next_action, target=True))
            target = batch["n_step_return"] + batch["discount"] * (next_q - temperature * next_log_prob)
        stored = 2.0 * (batch["action"].flatten(1) - self._low) / (self._high - self._low) - 1.0
        q1, q2 = self._q(batch["obs"], stored)
        loss_q = 0.5 * ((q1 - target).square().mean() + (q2 - target).square().mean())
        net.step("critics", loss_q)
        loss_actor = (temperature * log_prob - torch.minimum(*self._q(batch["obs"], action))).mean()
        net.step("actor", loss_actor)
        net.update_targets(self.config.target_tau)
        return {
            "loss/q": loss_q,
            "loss/actor": loss_actor,
            "q_mean": q1.mean(),
            "entropy": -log_prob.mean(),
            "temperature": temperature,
        }

    def _q(self, obs: Tensor, action: Tensor, target: bool = False) -> tuple[Tensor, Tensor]:
        q1, q2 = (self.net(name, obs, action, target=target).squeeze(1) for name in ("q1", "q2"))
        return q1, q2
