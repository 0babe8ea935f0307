"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv 1509.02971)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from zmqrl.acting.heads import UNIFORM
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.start.defaults import Sections, continuous_defaults
from zmqrl.config.sections import FORBID_UNKNOWN, Count, Fraction, Positive
from zmqrl.learning import Batch, Group, IntrinsicSection, Rate, ReplayLearner
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import Relabel, ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName


@dataclass(frozen=True)
class DDPGConfig:
    """The fields other than `kind: ddpg`. Defaults are those of Stable-Baselines3."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 1e-3
    """Adam's step size, of actor and critics."""
    gamma: Fraction = 0.99
    """Discount per step."""
    batch_size: Positive = 256
    """Rows per update."""
    n_step: Positive = 1
    """Rewards summed before bootstrapping."""
    warmup_env_steps: Count = 1_000
    """Env steps with uniform actions at the start, usually as many as `replay.learning_starts`."""
    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the networks mixed into their targets."""
    exploration_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the noise on workers' actions, in units of half the action range."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Bound of each gradient's norm; null switches it off."""
    intrinsic: IntrinsicSection | None = None
    """A reward for what is new, in addition to that of the env; null: none."""
    relabel: Relabel | None = None
    """Hindsight (HER) for envs with goals: other goals for a share of each sample; null: none."""


class DDPG(Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[DDPGConfig]] = DDPGConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    needs_bounds: ClassVar[bool] = True
    critics: ClassVar[tuple[str, ...]] = ("q1",)
    """Towers of the critics."""
    config: DDPGConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Stable-Baselines3: an update per env step, 256 x 256 units."""
        return continuous_defaults(env)

    def network(self) -> NetworkSpec:
        """`actor`, which ends in tanh; the critics, which only the learner has."""
        section, obs = self.network_section, self.env.observation
        actor = tower("actor", section, obs, self.action_size, output_gain=0.0, orthogonal=False)
        critics = (
            (name, tower(name, section, obs, 1, output_gain=0.0, orthogonal=False, joined=self.action_size))
            for name in self.critics
        )
        return NetworkSpec((("actor", (*actor, LayerSpec("tanh"))), *critics), learner_only=self.critics)

    def acting(self) -> ActingSpec:
        """The actor's action plus Gaussian noise."""
        return ActingSpec(
            layers=self.network().tower("actor"),
            head="deterministic_noise",
            action=self.env.action,
            observation=self.env.observation,
            noise=(NoiseSpec(UNIFORM, self.action_size, "uniform"),),
            input=self.input,
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`noise` and, during the warm-up, `uniform` actions for the workers."""
        uniform = float(progress.env_steps < self.config.warmup_env_steps)
        return {"noise": self.config.exploration_noise, UNIFORM: uniform}

    def replay(self) -> ReplaySpec:
        return ReplaySpec(n_step=self.config.n_step, relabel=self.config.relabel)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return math.prod(self.env.action.shape)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return DDPGLearner(self, context)


class DDPGLearner(ReplayLearner):
    """Steps critics, actor and targets in each update."""

    algorithm: DDPG
    config: DDPGConfig

    def __init__(self, algorithm: DDPG, context: LearnerContext) -> None:
        norm = algorithm.config.max_grad_norm
        groups = (
            Group("actor", max_grad_norm=norm, target=True),
            Group("critics", algorithm.critics, max_grad_norm=norm, target=True),
        )
        super().__init__(algorithm, context, groups)
        self._low, self._high = (self.tensor(side) for side in (algorithm.env.action.low, algorithm.env.action.high))

    def train(self, batch: Batch, moves_actor: bool = True) -> Mapping[str, Tensor]:
        """Algorithm 1 of the paper; the target is the lowest of the critics."""
        net, obs = self.net, batch["obs"]
        with torch.no_grad():
            next_q = reduce(torch.minimum, self.q(batch["next_obs"], self.next_action(batch), target=True))
            target = batch["n_step_return"] + batch["discount"] * next_q
        stored = 2.0 * (batch["action"].flatten(1) - self._low) / (self._high - self._low) - 1.0
        q = self.q(obs, stored)
        loss_q = reduce(torch.add, [(one - target).square().mean() for one in q])
        net.step("critics", loss_q)
        metrics = {"loss/q": loss_q, "q_mean": q[0].mean()}
        if moves_actor:
            loss_actor = -net(self.algorithm.critics[0], obs, net("actor", obs)).mean()
            net.step("actor", loss_actor)
            net.update_targets(self.config.target_tau)
            metrics["loss/actor"] = loss_actor
        return metrics

    def next_action(self, batch: Batch) -> Tensor:
        """Actions of the target in the states after those of a sample, in [-1, 1]."""
        return self.net("actor", batch["next_obs"], target=True)

    def q(self, obs: Tensor, action: Tensor, target: bool = False) -> Sequence[Tensor]:
        """What each critic has for actions in [-1, 1], `[B]`."""
        return [self.net(name, obs, action, target=target).squeeze(1) for name in self.algorithm.critics]
