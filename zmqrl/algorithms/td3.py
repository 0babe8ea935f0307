"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

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
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName


@dataclass(frozen=True)
class TD3Config:
    """The fields other than `kind: td3`. Defaults are those of Stable-Baselines3."""

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
    policy_delay: Positive = 2
    """Updates of the critics per update of the actor and of the targets."""
    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the networks mixed into their targets in every `policy_delay`-th update."""
    exploration_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the noise on workers' actions, in units of half the action range."""
    target_noise: Annotated[float, Ge(0)] = 0.2
    """Standard deviation of the noise on the target's actions, in the same unit."""
    target_noise_clip: Annotated[float, Ge(0)] = 0.5
    """Bound of that noise."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Bound of each gradient's norm; null switches it off."""


class TD3(Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[TD3Config]] = TD3Config
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    needs_bounds: ClassVar[bool] = True
    config: TD3Config

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Stable-Baselines3: an update per env step, 256 x 256 units."""
        sections = off_policy_defaults(env, segment_steps=4)
        sections["run"]["total_env_steps"] = total_of(env, 200_000)
        sections["network"] = network_of(env, (256, 256), "relu")
        sections["replay"] = {"capacity": capacity_of(env, 200_000), "learning_starts": 1_000, "ratio": 1.0}
        return sections

    def network(self) -> NetworkSpec:
        """`actor`, which ends in tanh; `q1` and `q2`, which only the learner has."""
        section, obs = self.network_section, self.env.observation
        actor = tower("actor", section, obs, self.action_size, output_gain=0.0, orthogonal=False)
        critics = (
            (name, tower(name, section, obs, 1, output_gain=0.0, orthogonal=False, joined=self.action_size))
            for name in ("q1", "q2")
        )
        return NetworkSpec((("actor", (*actor, LayerSpec("tanh"))), *critics), learner_only=("q1", "q2"))

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
        return ReplaySpec(n_step=self.config.n_step)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return math.prod(self.env.action.shape)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return TD3Learner(self, context)


class TD3Learner(ReplayLearner):
    """Steps the critics in each update, and the actor and the targets in every `policy_delay`-th."""

    algorithm: TD3
    config: TD3Config

    def __init__(self, algorithm: TD3, context: LearnerContext) -> None:
        norm = algorithm.config.max_grad_norm
        groups = (
            Group("actor", max_grad_norm=norm, target=True),
            Group("critics", ("q1", "q2"), max_grad_norm=norm, target=True),
        )
        super().__init__(algorithm, context, groups)
        self._low, self._high = (self.tensor(side) for side in (algorithm.env.action.low, algorithm.env.action.high))

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        """For the target's actions."""
        return {"next_noise": (self.algorithm.action_size,)}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Whether update `number` moves the actor."""
        return {"moves_actor": (number + 1) % self.config.policy_delay == 0}

    def train(self, batch: Batch, moves_actor: bool = True) -> Mapping[str, Tensor]:
        """Algorithm 1 of the paper."""
        net, config = self.net, self.config
        with torch.no_grad():
            noise = (batch["next_noise"] * config.target_noise).clamp(
                -config.target_noise_clip, config.target_noise_clip
            )
            next_action = (net("actor", batch["next_obs"], target=True) + noise).clamp(-1.0, 1.0)
            next_q = torch.minimum(*self._q(batch["next_obs"], next_action, target=True))
            target = batch["n_step_return"] + batch["discount"] * next_q
        stored = 2.0 * (batch["action"].flatten(1) - self._low) / (self._high - self._low) - 1.0
        q1, q2 = self._q(batch["obs"], stored)
        loss_q = (q1 - target).square().mean() + (q2 - target).square().mean()
        net.step("critics", loss_q)
        metrics = {"loss/q": loss_q, "q_mean": q1.mean()}
        if moves_actor:
            loss_actor = -net("q1", batch["obs"], net("actor", batch["obs"])).mean()
            net.step("actor", loss_actor)
            net.update_targets(config.target_tau)
            metrics["loss/actor"] = loss_actor
        return metrics

    def _q(self, obs: Tensor, action: Tensor, target: bool = False) -> tuple[Tensor, Tensor]:
        q1, q2 = (self.net(name, obs, action, target=target).squeeze(1) for name in ("q1", "q2"))
        return q1, q2
