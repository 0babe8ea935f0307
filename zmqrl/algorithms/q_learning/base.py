"""What the kinds of deep Q-learning share, without their learner: fields, network, exploration, replay.

A kind has `atoms` outputs for each action: one q value, or what describes a distribution of returns.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of
from zmqrl.algorithms.base import Algorithm, Progress
from zmqrl.algorithms.start.defaults import Sections, off_policy_defaults
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import IntrinsicSection
from zmqrl.learning.schedule import Rate, Schedule, value_at
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import Prioritised, Relabel, ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName


@dataclass(frozen=True)
class EpsilonSection(Schedule):
    """Share of random actions."""

    start: Fraction = 1.0
    """Share of random actions at the start."""
    end: Fraction = 0.05
    """Share of random actions from `fraction` on."""
    fraction: Fraction = 0.1
    """Part of the schedules' horizon over which the share goes from `start` to `end`."""


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

    @property
    def settings(self) -> Prioritised:
        """Settings of the sampler."""
        return Prioritised(self.alpha, self.beta, self.epsilon, self.uniform_mix)


@dataclass(frozen=True)
class MunchausenSection:
    """Munchausen (Vieillard et al. 2020): the reward has a share of the log-policy, and the next value is soft."""

    __pydantic_config__ = FORBID_UNKNOWN

    alpha: Fraction = 0.9
    """Share of temperature * log pi(a|s) that is added to the reward."""
    temperature: Annotated[float, Gt(0)] = 0.03
    """Temperature of the policy pi = softmax(Q / temperature)."""
    clip: Annotated[float, Gt(0)] = 1.0
    """temperature * log pi(a|s) is at least -clip."""


@dataclass(frozen=True)
class QLearningConfig:
    """The fields that all kinds have."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 2.5e-4
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
    noisy: bool = False
    """Noisy layers (Fortunato et al. 2018) explore; set `epsilon: {start: 0, end: 0}`."""
    prioritised: PrioritisedSection | None = None
    """Sample by TD error, of distributions by the loss of a row; null samples uniformly."""
    munchausen: MunchausenSection | None = None
    """Munchausen targets; null: those of the greedy policy."""
    target_update_every: Positive | None = None
    """Updates between two moves of the target network; null: 500, and 1 with `target_tau`."""
    target_tau: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the online network mixed into the target network in each move; null copies it whole."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Above 0: AdamW (Loshchilov & Hutter 2019)."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Bound of the gradient's global norm; null switches it off."""
    epsilon: EpsilonSection | Points[Fraction] = field(default_factory=EpsilonSection)
    """Exploration."""
    ladder: Annotated[float, Ge(0)] = 0.0
    """Env i of n explores with epsilon ** (1 + ladder i / (n - 1)) (Ape-X: 7, epsilon 0.4); 0: all with epsilon."""
    intrinsic: IntrinsicSection | None = None
    """A reward for what is new, in addition to that of the env; null: none."""
    relabel: Relabel | None = None
    """Hindsight (HER) for envs with goals: other goals for a share of each sample; null: none."""

    def __post_init__(self) -> None:
        """`target_update_every` as a number: a copy has to stay for a while, a small share has not."""
        default = 500 if self.target_tau is None else 1
        object.__setattr__(self, "target_update_every", self.target_update_every or default)

    @property
    def decay(self) -> float:
        """Weight decay; 0: without."""
        return self.weight_decay


class QLearningAlgorithm(Algorithm, ABC):
    """Deep Q-learning for discrete actions."""

    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"discrete"})
    joint_defaults: ClassVar[tuple[frozenset[str], ...]] = (frozenset({"target_update_every", "target_tau"}),)
    config: Any

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """An update per 4 env steps, a target that follows slowly, exploration over a tenth of the run."""
        sections = off_policy_defaults(env)
        image = env.observation.is_image
        if image:
            sections["replay"]["learning_starts"] = min(20_000, sections["replay"]["capacity"])
        sections["algorithm"] = {
            "learning_rate": 1e-4 if image else 2.5e-4,
            "target_tau": 0.005,
            "target_update_every": 1,
            "epsilon": {"start": 1.0, "end": 0.01 if image else 0.05, "fraction": 0.1},
        }
        return sections

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when a batch exceeds replay."""
        if self.config.batch_size > replay.capacity:
            raise ConfigError(
                f"is larger than replay.capacity {replay.capacity}",
                key=("algorithm", "batch_size"),
                value=str(self.config.batch_size),
                is_subject=True,
                fix="raise replay.capacity or lower algorithm.batch_size",
                others=(("replay", "capacity"),),
            )

    @property
    def atoms(self) -> int:
        """Outputs of the tower for each action."""
        return 1

    def network(self) -> NetworkSpec:
        """One tower `q`: the outputs of action 0, then those of action 1, and so on."""
        config, outputs = self.config, self.env.action.n * self.atoms
        options: dict[str, Any] = {"dueling": config.dueling, "noisy": config.noisy, "atoms": self.atoms}
        section, obs = self.network_section, self.env.observation
        layers = tower("q", section, obs, outputs, output_gain=0.0, orthogonal=False, **options)
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the q values; `epsilon` is part of the version."""
        layers = self.network().tower("q")
        options = {"ladder": self.config.ladder} if self.config.ladder else {}
        space, obs, noise = self.env.action, self.env.observation, noise_of(layers)
        return ActingSpec(layers, "epsilon_greedy", space, obs, input=self.input, options=options, noise=noise)

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`epsilon` for the workers."""
        return {"epsilon": value_at(self.config.epsilon, progress)}

    def replay(self) -> ReplaySpec:
        """Transitions, by priority if configured."""
        config, section = self.config, self.config.prioritised
        return ReplaySpec(config.n_step, prioritised=section and section.settings, relabel=config.relabel)
