"""DQN and its parts, each an option: double, dueling, n-step, prioritised. No torch here.

Mnih et al. 2015; van Hasselt et al. 2016; Wang et al. 2016; Schaul et al. 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec, NetworkSpec
from zmqrl.algorithms.base import Algorithm, OffPolicyLearner, Progress
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, NetworkSection, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.types import MODES, EnvSpec, ModeName, Weights


@dataclass(frozen=True)
class EpsilonSection:
    """Share of random actions: linear from `start` to `end` over `fraction` of the schedules' horizon."""

    __pydantic_config__ = FORBID_UNKNOWN

    start: Fraction = 1.0
    """Share of random actions at the start."""
    end: Fraction = 0.05
    """Share of random actions from `fraction` on."""
    fraction: Fraction = 0.1
    """Part of the schedules' horizon over which the share goes from `start` to `end`."""

    def at(self, progress: float) -> float:
        """Epsilon at `progress` (0 .. 1) of the horizon."""
        done = 1.0 if self.fraction == 0 else min(1.0, progress / self.fraction)
        return self.start + done * (self.end - self.start)


@dataclass(frozen=True)
class PrioritisedSection:
    """Prioritised replay (Schaul et al. 2016, proportional variant)."""

    __pydantic_config__ = FORBID_UNKNOWN

    alpha: Fraction = 0.6
    """Priority is (|TD error| + epsilon) ** alpha."""
    beta: Fraction = 0.4
    """First exponent of the importance weights."""
    beta_end: Fraction = 1.0
    """Last exponent, at the end of the schedules' horizon."""
    epsilon: Annotated[float, Gt(0)] = 1e-4
    """Keeps every row's priority above zero."""
    uniform_mix: Fraction = 0.0
    """Share of uniform sampling mixed in; bounds the weights."""


@dataclass(frozen=True)
class DQNConfig:
    """The fields other than `kind: dqn`. The size of replay and the replay ratio are in `replay`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Annotated[float, Gt(0)] = 2.5e-4
    """Adam's step size."""
    gamma: Fraction = 0.99
    """Discount per step."""
    batch_size: Positive = 128
    """Rows per update."""
    n_step: Positive = 1
    """Rewards summed before bootstrapping."""
    double: bool = True
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Last layer as value + advantage."""
    prioritised: PrioritisedSection | None = None
    """Sample by TD error; null samples uniformly."""
    loss: Literal["huber", "mse"] = "huber"
    """On the TD error; `mse` is 1/2 delta^2, so that both agree for small errors."""
    target_update_every: Positive = 500
    """Updates between copies to the target network."""
    target_tau: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the online network mixed into the target every `target_update_every` updates; null copies it."""
    optimiser: Literal["adam", "adamw"] = "adam"
    """`adamw` decays weights apart from the gradient (Loshchilov & Hutter 2019)."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """adamw only."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Bound of the gradient's global norm; null switches it off."""
    epsilon: EpsilonSection = field(default_factory=EpsilonSection)
    """Exploration."""


class DQN(Algorithm):
    """Deep Q-learning for discrete actions."""

    Config: ClassVar[type[DQNConfig]] = DQNConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    config: DQNConfig

    def __init__(
        self, config: DQNConfig, network: NetworkSection, env: EnvSpec, segment_steps: int, num_envs: int
    ) -> None:
        """Raise `ConfigError` when actions are not discrete."""
        super().__init__(config, network, env, segment_steps, num_envs)
        if env.action.kind != "discrete":
            raise ConfigError(f"algorithm.kind: dqn needs discrete actions, {env.id} has {env.action.kind} actions")
        if env.observation.action_mask is not None:
            raise ConfigError(f"algorithm.kind: dqn does not train with masks, and {env.id} has an action_mask")

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when a batch exceeds replay, or n-step targets do not fit a segment."""
        del vector_envs
        if self.config.batch_size > replay.capacity:
            raise ConfigError(
                f"algorithm.batch_size: {self.config.batch_size} is larger than replay.capacity {replay.capacity}"
            )
        least = 4 * self.n_step if MODES[mode].deterministic else self.n_step
        if self.segment_steps < least:
            raise ConfigError(
                f"env.segment_steps: {self.segment_steps} is too short for algorithm.n_step {self.n_step} "
                f"in mode {mode}; it must be at least {least}"
            )

    def network(self) -> NetworkSpec:
        """One tower `q`."""
        gain_free = tower(
            "q",
            self.network_section,
            self.env.observation,
            self.env.action.n,
            output_gain=0.0,
            orthogonal=False,
            dueling=self.config.dueling,
        )
        return NetworkSpec((("q", gain_free),))

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the q values; `epsilon` is part of the version."""
        return ActingSpec(
            layers=self.network().tower("q"),
            head="epsilon_greedy",
            action=self.env.action,
            observation=self.env.observation,
            runtime="torch" if self.network_section.kind == "cnn" else "numpy",
            input=self.input,
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`epsilon` for the workers."""
        return {"epsilon": self.config.epsilon.at(progress.fraction)}

    @property
    def n_step(self) -> int:
        """Rewards summed before bootstrapping."""
        return self.config.n_step

    @property
    def prioritised(self) -> Mapping[str, float] | None:
        """Settings of prioritised replay, or None."""
        section: Any = self.config.prioritised
        return None if section is None else asdict(section)

    def learner(self, weights: Weights, device: str) -> OffPolicyLearner:
        """The learner; imports torch."""
        from zmqrl.algorithms.dqn_learner import DQNLearner

        return DQNLearner(self, weights, device)
