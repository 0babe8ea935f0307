"""DQN and its parts, each an option: double, dueling, n-step, prioritised.

Mnih et al. 2015; van Hasselt et al. 2016; Wang et al. 2016; Schaul et al. 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of
from zmqrl.algorithms.base import Algorithm, LearnerContext, LearnResult, OffPolicyLearner, Progress
from zmqrl.algorithms.start.defaults import Sections, off_policy_defaults
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import PRIORITY, Adam, AdamW, Batch, Group, ReplayLearner
from zmqrl.learning.schedule import Rate, Schedule, value_at
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.kinds.base import without_backward
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.base import Replay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.spaces import SpaceKind
from zmqrl.types import MODES, EnvSpec, ModeName

USES = TRAINED, CHOICE, VALUE = ("noise", "choice_noise", "value_noise")
"""Noise of noisy layers in a batch, `<use>.<layer>`."""


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


@dataclass(frozen=True)
class DQNConfig:
    """The fields other than `kind: dqn`. The size of replay and the replay ratio are in `replay`."""

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
    """Sample by TD error; null samples uniformly."""
    loss: Literal["huber", "mse"] = "huber"
    """On the TD error; `mse` is 1/2 delta^2, so that both agree for small errors."""
    target_update_every: Positive | None = None
    """Updates between two moves of the target network; null: 500, and 1 with `target_tau`."""
    target_tau: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the online network mixed into the target network in each move; null copies it whole."""
    optimiser: Literal["adam", "adamw"] = "adam"
    """`adamw` decays weights apart from the gradient (Loshchilov & Hutter 2019)."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """adamw only."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Bound of the gradient's global norm; null switches it off."""
    epsilon: EpsilonSection | Points[Fraction] = field(default_factory=EpsilonSection)
    """Exploration."""

    def __post_init__(self) -> None:
        """`target_update_every` as a number."""
        object.__setattr__(self, "target_update_every", target_period(self))


def target_period(config: Any) -> int:
    """Updates between two moves of the target network: a copy has to stay for a while, a small share has not."""
    default = 500 if config.target_tau is None else 1
    return int(config.target_update_every or default)


class DQN(Algorithm):
    """Deep Q-learning for discrete actions."""

    Config: ClassVar[type[DQNConfig]] = DQNConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"discrete"})
    joint_defaults: ClassVar[tuple[frozenset[str], ...]] = (frozenset({"target_update_every", "target_tau"}),)
    config: DQNConfig

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
    def executors(self) -> tuple[str, ...]:
        """Gradients are written out for linear layers with tanh or relu."""
        manual = () if without_backward(self.network().tower("q")) else ("manual",)
        return (*manual, "eager", "compiled")

    def network(self) -> NetworkSpec:
        gain_free = tower(
            "q",
            self.network_section,
            self.env.observation,
            self.env.action.n,
            output_gain=0.0,
            orthogonal=False,
            dueling=self.config.dueling,
            noisy=self.config.noisy,
        )
        return NetworkSpec((("q", gain_free),))

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the q values; `epsilon` is part of the version."""
        layers = self.network().tower("q")
        return ActingSpec(
            layers=layers,
            head="epsilon_greedy",
            action=self.env.action,
            observation=self.env.observation,
            input=self.input,
            noise=noise_of(layers),
        )

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`epsilon` for the workers."""
        return {"epsilon": value_at(self.config.epsilon, progress)}

    def replay(self) -> ReplaySpec:
        """Transitions, by priority if configured."""
        section = self.config.prioritised
        if section is None:
            return ReplaySpec(n_step=self.config.n_step)
        prioritised = Prioritised(section.alpha, section.beta, section.epsilon, section.uniform_mix)
        return ReplaySpec(n_step=self.config.n_step, prioritised=prioritised)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        if context.executor == "manual":
            from zmqrl.algorithms.dqn_manual import ManualDQNLearner  # it imports torch

            return ManualDQNLearner(self, context)
        return DQNLearner(self, context)


class DQNLearner(ReplayLearner):
    """One sampled minibatch per update."""

    algorithm: DQN
    config: DQNConfig

    def __init__(self, algorithm: DQN, context: LearnerContext) -> None:
        config = algorithm.config
        optimiser = Adam(epsilon=config.adam_epsilon)
        if config.optimiser == "adamw":
            optimiser = AdamW(epsilon=config.adam_epsilon, weight_decay=config.weight_decay)
        group = Group("q", (), config.max_grad_norm, optimiser, target=True)
        super().__init__(algorithm, context, (group,))

    def anneal(self, replay: Replay, progress: Progress) -> None:
        """The exponent of the importance weights."""
        section = self.config.prioritised
        if section is not None:
            replay.anneal(section.beta + progress.fraction * (section.beta_end - section.beta))

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        """Noise of noisy layers: for the q values, for the choice of the next action, and for its value."""
        layers = noise_of(self.algorithm.network().tower("q"))
        return {f"{use}.{layer.name}": (layer.size,) for use in USES for layer in layers}

    def _noise(self, batch: Batch, use: str) -> dict[str, Tensor]:
        return {name.removeprefix(f"{use}."): drawn for name, drawn in batch.items() if name.startswith(f"{use}.")}

    def variant(self, number: int) -> Mapping[str, bool]:
        """Whether the target network follows after update `number`."""
        return {"moves_target": (number + 1) % target_period(self.config) == 0}

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        """Do `updates` updates; the metrics include the settings that change over the run."""
        result = super().update(replay, updates, progress)
        now = {"learning_rate": value_at(self.config.learning_rate, progress), **self.algorithm.schedule(progress)}
        return replace(result, metrics={**result.metrics, **now})

    def train(self, batch: Batch, moves_target: bool = False) -> Mapping[str, Tensor]:
        """Equation 2 of Mnih et al. 2015; with `double` equation 4 of van Hasselt et al. 2016."""
        net, config = self.net, self.config
        with torch.no_grad():
            next_q = net("q", batch["next_obs"], target=True, noise=self._noise(batch, VALUE))
            chosen = net("q", batch["next_obs"], noise=self._noise(batch, CHOICE)) if config.double else next_q
            best = chosen.argmax(1, keepdim=True)
            target = batch["n_step_return"] + batch["discount"] * next_q.gather(1, best).squeeze(1)
        q = net("q", batch["obs"], noise=self._noise(batch, TRAINED))
        error = q.gather(1, batch["action"].unsqueeze(1)).squeeze(1) - target
        slope = error.clamp(-1.0, 1.0) if config.loss == "huber" else error
        loss = (batch["weight"] * slope.detach() * (error - 0.5 * slope.detach())).mean()
        net.step("q", loss)
        if moves_target:
            net.update_targets(1.0 if config.target_tau is None else config.target_tau)
        results = {"loss/q": loss, "td_error": error.abs().mean(), "q_mean": q.mean()}
        return results if config.prioritised is None else {**results, PRIORITY: error.abs()}
