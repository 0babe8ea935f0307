"""Soft actor-critic with two critics and a learned temperature (Haarnoja et al. 2018, arXiv 1812.05905).

With discrete actions: Christodoulou 2019, arXiv 1910.07207.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Gt, Le

from zmqrl.acting.heads import UNIFORM
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.start.defaults import Sections, continuous_defaults
from zmqrl.config.sections import FORBID_UNKNOWN, Count, Fraction, Positive
from zmqrl.learning import Batch, Group, IntrinsicSection, Noise, Rate, ReplayLearner
from zmqrl.loading import Tensor, functional, np, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import tanh_gaussian
from zmqrl.replay.spec import Relabel, ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName

FreeParameters: TypeAlias = tuple[tuple[str, tuple[int, ...], float], ...]
"""Name, shape and first value of each."""
LOG_TEMPERATURE = "log_temperature"
"""Parameter and group of a learned temperature."""


@dataclass(frozen=True)
class QActorConfig:
    """Fields of an actor with critics of its actions, trained from replay."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Adam's step size, of actor and critics, and of `temperature: auto`."""
    gamma: Fraction = 0.99
    """Discount per step."""
    batch_size: Positive = 256
    """Rows per update."""
    n_step: Positive = 1
    """Rewards summed before bootstrapping."""
    warmup_env_steps: Count = 1_000
    """Env steps with uniform actions at the start, usually as many as `replay.learning_starts`. Discrete actions do not
    need them: those of the first version are nearly uniform."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Bound of each gradient's norm; null switches it off."""
    intrinsic: IntrinsicSection | None = None
    """A reward for what is new, in addition to that of the env; null: none."""
    relabel: Relabel | None = None
    """Hindsight (HER) for envs with goals: other goals for a share of each sample; null: none."""


@dataclass(frozen=True)
class SACConfig(QActorConfig):
    """The fields other than `kind: sac`. Defaults are those of Stable-Baselines3."""

    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the critics mixed into their targets in each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy; `auto` learns it, beginning with 1."""
    target_entropy: float | Literal["auto"] = "auto"
    """What `temperature: auto` aims at, in nats; `auto` is minus the number of action dimensions, and with n discrete
    actions 0.98 log n."""


class QActor(Algorithm, ABC):
    """An actor with continuous actions within bounds, or discrete ones, and critics, which only the learner has."""

    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box", "discrete"})
    needs_bounds: ClassVar[bool] = True
    critic_count: ClassVar[int] = 2
    config: Any

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Stable-Baselines3: an update per env step, 256 x 256 units."""
        return continuous_defaults(env)

    @property
    def is_discrete(self) -> bool:
        """Whether actions are one of n."""
        return self.env.action.kind == "discrete"

    @property
    def action_size(self) -> int:
        """Dimensions of an action, or the number of discrete actions."""
        return self.env.action.n if self.is_discrete else math.prod(self.env.action.shape)

    @property
    def critics(self) -> tuple[str, ...]:
        """Towers of the critics: `q1`, `q2`, ..."""
        return tuple(f"q{number}" for number in range(1, 1 + self.critic_count))

    @property
    def actor_outputs(self) -> int:
        """Numbers that the actor has of an observation."""
        return self.action_size if self.is_discrete else 2 * self.action_size

    @property
    def critic_outputs(self) -> int:
        """Numbers that a critic has of an observation: with discrete actions of all actions."""
        return self.action_size if self.is_discrete else 1

    @property
    def parameters(self) -> FreeParameters:
        """Free parameters, which only the learner has."""
        return ()

    def network(self) -> NetworkSpec:
        """`actor`; the critics and `parameters`, which only the learner has."""
        section, obs, size = self.network_section, self.env.observation, self.action_size
        actor = tower("actor", section, obs, self.actor_outputs, output_gain=0.0, orthogonal=False)
        shape: dict[str, Any] = {"output_gain": 0.0, "orthogonal": False, "joined": 0 if self.is_discrete else size}
        critics = ((name, tower(name, section, obs, self.critic_outputs, **shape)) for name in self.critics)
        learner_only = (*self.critics, *(name for name, _, _ in self.parameters))
        return NetworkSpec((("actor", actor), *critics), self.parameters, learner_only)

    def acting(self) -> ActingSpec:
        """Tanh of a Gaussian, scaled to the bounds; or a categorical distribution."""
        return ActingSpec(
            layers=self.network().tower("actor"),
            head="categorical" if self.is_discrete else "squashed_gaussian",
            action=self.env.action,
            observation=self.env.observation,
            noise=() if self.is_discrete else (NoiseSpec(UNIFORM, self.action_size, "uniform"),),
            input=self.input,
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`uniform` for the workers: the share of uniform actions."""
        return {} if self.is_discrete else {UNIFORM: float(progress.env_steps < self.config.warmup_env_steps)}

    def replay(self) -> ReplaySpec:
        return ReplaySpec(n_step=self.config.n_step, relabel=self.config.relabel)


class SAC(QActor, Algorithm):
    """Continuous actions within bounds, or discrete ones."""

    Config: ClassVar[type[SACConfig]] = SACConfig
    config: SACConfig

    @property
    def target_entropy(self) -> float:
        """Entropy in nats that a learned temperature aims at."""
        given, largest = self.config.target_entropy, math.log(self.env.action.n or 1)
        if given != "auto":
            return float(given)
        return 0.98 * largest if self.is_discrete else -float(self.action_size)

    @property
    def parameters(self) -> FreeParameters:
        """`log_temperature`, where it is learned."""
        return ((LOG_TEMPERATURE, (), 0.0),) if self.config.temperature == "auto" else ()

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return SACLearner(self, context)


class QActorLearner(ReplayLearner):
    """Critics of actions: in its methods those of discrete actions are one-hot, or the probability of each `[B, n]`."""

    algorithm: QActor

    def __init__(self, algorithm: QActor, context: LearnerContext, groups: Sequence[Group]) -> None:
        super().__init__(algorithm, context, groups)
        self._low, self._high = (self.tensor(side) for side in (algorithm.env.action.low, algorithm.env.action.high))

    def q(self, obs: Tensor, action: Tensor, target: bool = False) -> Sequence[Tensor]:
        """Outputs `[B, critic_outputs]` of each critic."""
        joined = () if self.algorithm.is_discrete else (action,)
        return [self.net(name, obs, *joined, target=target) for name in self.algorithm.critics]

    def stored(self, batch: Batch) -> Tensor:
        """Actions of a sample, scaled to [-1, 1]."""
        if self.algorithm.is_discrete:
            return functional.one_hot(batch["action"], self.algorithm.action_size).float()
        return 2.0 * (batch["action"].flatten(1) - self._low) / (self._high - self._low) - 1.0


class SACLearner(QActorLearner):
    """Steps temperature, critics and actor in each update, in the order of Stable-Baselines3."""

    algorithm: SAC
    config: SACConfig

    def __init__(self, algorithm: SAC, context: LearnerContext) -> None:
        norm, temperature = algorithm.config.max_grad_norm, algorithm.config.temperature
        groups = (
            Group("actor", max_grad_norm=norm),
            Group("critics", algorithm.critics, max_grad_norm=norm, target=True),
            *((Group(LOG_TEMPERATURE),) if temperature == "auto" else ()),
        )
        super().__init__(algorithm, context, groups)
        self._fixed = None if temperature == "auto" else self.tensor(np.float32(math.log(temperature)))

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        """For the actions drawn in the states of a sample, and in those after them."""
        size = (self.algorithm.action_size,)
        return {} if self.algorithm.is_discrete else {"noise": size, "next_noise": size}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Equations 5 to 7 and 18 of the paper; with discrete actions 10 to 12 of Christodoulou 2019."""
        net, obs = self.net, batch["obs"]
        action, log_prob = self.policy(obs, batch.get("noise"))
        temperature = self._temperature(log_prob)
        metrics = self.critic_loss(batch, temperature)
        net.step("critics", metrics["loss/q"])
        loss_actor = (temperature * log_prob - self.value(obs, action)).mean()
        net.step("actor", loss_actor)
        net.update_targets(self.config.target_tau)
        return {**metrics, "loss/actor": loss_actor, "entropy": -log_prob.mean(), "temperature": temperature}

    def critic_loss(self, batch: Batch, temperature: Tensor) -> dict[str, Tensor]:
        """`loss/q`, which the critics are stepped with, and further metrics."""
        with torch.no_grad():
            next_action, next_log_prob = self.policy(batch["next_obs"], batch.get("next_noise"))
            next_value = self.value(batch["next_obs"], next_action, target=True) - temperature * next_log_prob
            target = batch["n_step_return"] + batch["discount"] * next_value
        action = self.stored(batch)
        q1, q2 = (self.of_action(q, action) for q in self.q(batch["obs"], action))
        loss = 0.5 * ((q1 - target).square().mean() + (q2 - target).square().mean())
        return {"loss/q": loss, "q_mean": q1.mean()}

    def policy(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) `[B, A]` and their log-probabilities `[B]`; of discrete ones the expected one."""
        outputs = self.net("actor", obs)
        if noise is not None:
            return tanh_gaussian(outputs, noise)
        log_p = torch.log_softmax(outputs, 1)
        return log_p.exp(), (log_p.exp() * log_p).sum(1)

    def value(self, obs: Tensor, action: Tensor, target: bool = False) -> Tensor:
        """What the critics have for the policy's actions `[B]`: the lower of both."""
        return self.of_action(reduce(torch.minimum, self.q(obs, action, target)), action)

    def of_action(self, q: Tensor, action: Tensor) -> Tensor:
        """The output for an action `[B]`, of discrete ones the expected one."""
        return (q * action).sum(1) if self.algorithm.is_discrete else q.squeeze(1)

    def _temperature(self, log_prob: Tensor) -> Tensor:
        """The temperature before its step, which it does where it is learned."""
        if self._fixed is not None:
            return self._fixed.exp()
        logarithm = self.net.parameter(LOG_TEMPERATURE)
        temperature = logarithm.detach().exp()
        surplus = (log_prob + self.algorithm.target_entropy).detach()
        self.net.step(LOG_TEMPERATURE, -(logarithm * surplus).mean())
        return temperature


def repeated(rows: Tensor, count: int) -> Tensor:
    """Each row of `rows [B, ...]` `count` times in a row: `[B * count, ...]`."""
    return rows.unsqueeze(1).expand(-1, count, *rows.shape[1:]).flatten(0, 1)
