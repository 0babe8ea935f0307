"""Policy gradients as launcher and workers see them: configuration, network and acting, without torch."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt

from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import state_of
from zmqrl.algorithms.base import Algorithm, check_minibatch
from zmqrl.config.codec import replace
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import IntrinsicSection, Optimiser, RMSProp
from zmqrl.learning.schedule import Rate
from zmqrl.loading import np
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.types import MODES, ModeName, Weights

Layers = tuple[LayerSpec, ...]


@dataclass(frozen=True)
class PolicyConfig:
    """Fields that every policy gradient has."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 3e-4
    """Step size of the optimiser."""
    gamma: Fraction = 0.99
    """Discount per step."""
    ent_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Bound of the gradient's global norm."""
    normalise_advantage: bool = True
    """Mean 0 and deviation 1 per minibatch."""
    normalise_obs: bool = False
    """Observations as (obs - mean) / deviation over the run so far."""
    obs_clip: Annotated[float, Gt(0)] = 10.0
    """Bound of normalised observations."""
    normalise_reward: bool = False
    """Divide rewards by the deviation of the discounted return."""
    reward_clip: Annotated[float, Gt(0)] = 10.0
    """Bound of normalised rewards."""
    log_std_init: float = 0.0
    """First log deviation of a continuous policy."""
    orthogonal_init: bool = True
    """Orthogonal layers (sqrt 2, policy head .01, value head 1); else PyTorch's default."""
    batch_segments: Positive = 4
    """async: segments of one batch. In the other modes a batch is one segment per vector env."""
    intrinsic: IntrinsicSection | None = None
    """A reward for what is new, in addition to that of the env; null: none."""


@dataclass(frozen=True)
class MemorySection:
    """A recurrent layer after the hidden ones, trained on sequences from stored state."""

    __pydantic_config__ = FORBID_UNKNOWN

    cell: Literal["lstm", "gru"] = "lstm"
    """Kind of the layer."""
    size: Positive = 64
    """Outputs of the layer; a `gru` has as many numbers of state, an `lstm` twice as many."""
    sequence: Positive = 16
    """Rows of a sequence, a divisor of `env.segment_steps`: gradients reach so many rows, state is stored so often."""


@dataclass(frozen=True)
class ActorCriticConfig(PolicyConfig):
    """Fields of algorithms with a critic."""

    __pydantic_config__ = FORBID_UNKNOWN

    vf_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss, the mean squared error (without a factor 1/2)."""
    normalise_value: bool = False
    """The critic predicts (return - mean) / deviation, with those of all returns so far."""
    shared: bool = False
    """Actor and critic share the hidden layers and the memory (`torso`)."""
    memory: MemorySection | None = None
    """A recurrent layer after the hidden ones, of actor and critic each unless `shared`; null: none."""


class PolicyGradient(Algorithm, ABC):
    """A policy in the tower `actor`, for actions of every kind. Segments contain its log-probabilities."""

    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES) - {"offline"}
    on_policy: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    config: Any

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when no observation can be normalised, or a minibatch is larger than the batch."""
        del replay
        if self.config.normalise_obs and not self.input.statistics_size:
            wrapper = '{"gymnasium.wrappers:DtypeObservation": {dtype: float32}}'
            more = f", or add {wrapper} to env.wrappers" if self.env.observation.kind == "box" else ""
            raise ConfigError(
                f"{self.env.id} has no float observations",
                key=("algorithm", "normalise_obs"),
                value="true",
                fix=f"set false{more}",
                others=(("env", "wrappers"),),
            )
        if self.minibatch_size is not None:
            segments = vector_envs if MODES[mode].deterministic else self.config.batch_segments
            check_minibatch(self.minibatch_size, segments, self.segment_steps, self.num_envs)

    @property
    def minibatch_size(self) -> int | None:
        """Rows per update, at most; None: one update with the whole batch."""
        size: int | None = getattr(self.config, "minibatch_size", None)
        return size

    @property
    def optimiser(self) -> Optimiser:
        """How gradients move the parameters."""
        return RMSProp(epsilon=self.config.rmsprop_epsilon)

    def tower(self, name: str, outputs: int, gain: float) -> Layers:
        """A tower of the section `network`."""
        orthogonal = self.config.orthogonal_init
        section, space = self.network_section, self.env.observation
        return tower(name, section, space, outputs, output_gain=gain, orthogonal=orthogonal)

    @property
    def parameters(self) -> tuple[tuple[str, tuple[int, ...], float], ...]:
        """`log_std` when actions are continuous."""
        return () if self.env.action.choices else (("log_std", (self.action_size,), self.config.log_std_init),)

    def network(self) -> NetworkSpec:
        """The tower `actor`; `log_std` when actions are continuous."""
        return NetworkSpec((("actor", self.tower("actor", self.action_size, 0.01)),), self.parameters)

    def acting_layers(self) -> Layers:
        """Layers from the input of the network to the outputs of the policy."""
        towers = dict(self.network().towers)
        return (*towers.get("torso", ()), *towers["actor"])

    def acting(self) -> ActingSpec:
        """Categorical or Gaussian actions; a segment contains their log-probabilities."""
        several = "multi_categorical" if self.env.action.choices else "gaussian"
        return ActingSpec(
            layers=self.acting_layers(),
            head="categorical" if self.discrete else several,
            action=self.env.action,
            observation=self.env.observation,
            extras=(self.extra("log_prob"),),
            normalise_obs=self.config.normalise_obs,
            obs_clip=self.config.obs_clip,
            arrays=() if self.env.action.choices else ("log_std",),
            input=self.input,
        )

    def statistics(self) -> Weights:
        """`obs_mean` and `obs_scale` (float64, flat, of the float parts), the identity before the first batch."""
        if not self.config.normalise_obs:
            return {}
        size = self.input.statistics_size
        return {"obs_mean": np.zeros(size), "obs_scale": np.ones(size)}

    def learner_statistics(self) -> Mapping[str, int]:
        """Sizes of the statistics of observations and rewards: of those that are normalised."""
        obs = {"obs": self.input.statistics_size} if self.config.normalise_obs else {}
        return {**obs, **({"reward": 1} if self.config.normalise_reward else {})}

    @property
    def discrete(self) -> bool:
        """Whether actions are one of n."""
        return self.env.action.kind == "discrete"

    @property
    def action_size(self) -> int:
        """Outputs of the policy."""
        return sum(self.env.action.choices) or math.prod(self.env.action.shape)

    @property
    def batch_segments(self) -> int | None:
        size: int = self.config.batch_segments
        return size


class ActorCritic(PolicyGradient, ABC):
    """A policy and its value: separate towers, or two heads of one torso; each with memory if it is configured."""

    @property
    def memory(self) -> MemorySection | None:
        """The recurrent layer."""
        memory: MemorySection | None = self.config.memory
        return memory

    def state_size(self, name: str) -> int:
        """Numbers of recurrent state of a tower."""
        return sum(state.size for state in state_of(self.network().tower(name)))

    def core(self, name: str) -> str:
        """Name of the recurrent layer of a tower, and of its state."""
        return f"{name}.{self.memory.cell}" if self.memory else ""

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` also when sequences do not fit segments or minibatches."""
        super().check(mode, vector_envs, replay)
        if self.memory is None:
            return
        sequence, size = self.memory.sequence, self.minibatch_size
        if self.segment_steps % sequence:
            raise ConfigError(
                f"must be a divisor of env.segment_steps {self.segment_steps}",
                key=("algorithm", *(("memory",) if self.config.memory else ()), "sequence"),
                value=str(sequence),
                is_subject=True,
                others=(("env", "segment_steps"),),
            )
        if size is not None and size < sequence:
            what = f"is less than a sequence of {sequence} rows"
            raise ConfigError(what, key=("algorithm", "minibatch_size"), value=str(size), is_subject=True)

    def network(self) -> NetworkSpec:
        """Towers `actor` and `critic`, with `shared` after `torso`; `log_std` when actions are continuous."""
        sizes = {"actor": (self.action_size, 0.01), "critic": (1, 1.0)}
        if not self.config.shared:
            towers = ((name, self._remembering(name, self.tower(name, *size))) for name, size in sizes.items())
            return NetworkSpec(tuple(towers), self.parameters)
        *torso, last = self._remembering("torso", self.tower("torso", 1, 1.0))
        heads = (
            (name, (LayerSpec("linear", f"{name}.0", last.inputs, outputs, gain=self._gain(gain)),))
            for name, (outputs, gain) in sizes.items()
        )
        return NetworkSpec((("torso", tuple(torso)), *heads), self.parameters)

    def _remembering(self, name: str, layers: Layers) -> Layers:
        """Layers with the recurrent one before the last one."""
        if self.memory is None:
            return layers
        *body, last = layers
        core = LayerSpec(self.memory.cell, self.core(name), last.inputs, self.memory.size, gain=self._gain(1.0))
        return (*body, core, replace(last, inputs=self.memory.size))

    def _gain(self, gain: float) -> float:
        return gain if self.config.orthogonal_init else 0.0

    def acting(self) -> ActingSpec:
        """Acting of the policy, with memory also its state, stored at the start of each sequence."""
        acting = super().acting()
        if self.memory is None:
            return acting
        return replace(acting, state=state_of(acting.layers), state_every=self.memory.sequence)

    def learner_statistics(self) -> Mapping[str, int]:
        """Sizes of the statistics of values too."""
        return {**super().learner_statistics(), **({"value": 1} if self.config.normalise_value else {})}
