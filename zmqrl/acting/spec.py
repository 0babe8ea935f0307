"""What a worker needs to know to act: plain data, no algorithm, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zmqrl.types import ColumnSpec, SpaceSpec


@dataclass(frozen=True)
class LayerSpec:
    """One layer of a feed-forward network.

    Arrays of a layer named `actor.0`:
    linear   `actor.0.weight [outputs, inputs]`, `actor.0.bias [outputs]`
    conv     `actor.0.weight [outputs, inputs, kernel, kernel]`, `actor.0.bias [outputs]`
    dueling  `actor.0.value.weight [1, inputs]`, `.value.bias`, `actor.0.advantage.weight [outputs, inputs]`,
             `.advantage.bias`; gives value + advantage - mean(advantage)
    gru      `core.weight_ih [3 outputs, inputs]`, `core.weight_hh [3 outputs, outputs]`, `core.bias_ih [3 outputs]`,
             `core.bias_hh [3 outputs]`, as torch.nn.GRUCell; its recurrent state has the name of the layer
    tanh, relu, flatten, scale (divide by `inputs`, e.g. 255 for pixels) have none.
    """

    kind: Literal["linear", "conv", "dueling", "gru", "tanh", "relu", "flatten", "scale", "concat"]
    name: str = ""
    inputs: int = 0
    outputs: int = 0
    kernel: int = 0
    stride: int = 1
    gain: float = 1.0
    """Orthogonal initialisation's gain; 0 means PyTorch's default uniform(+-1/sqrt(inputs))."""


@dataclass(frozen=True)
class NetworkSpec:
    """A network as named towers of layers, and free parameters (name, shape, first value)."""

    towers: tuple[tuple[str, tuple[LayerSpec, ...]], ...]
    parameters: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    learner_only: tuple[str, ...] = ()
    """Towers and free parameters that full checkpoints hold and that are never published, such as critics."""

    def is_learner_only(self, tensor: str) -> bool:
        """Whether a tensor of this name is not published."""
        return any(tensor == name or tensor.startswith(f"{name}.") for name in self.learner_only)

    def tower(self, name: str) -> tuple[LayerSpec, ...]:
        """The layers of one tower; KeyError names it when there is none."""
        return dict(self.towers)[name]


@dataclass(frozen=True)
class ActingState:
    """Recurrent state of acting: `size` float32 numbers per env, zero where an episode begins.

    It is that of the layer, or of the head, that has this name. The collector owns it.
    """

    name: str
    size: int


@dataclass(frozen=True)
class NoiseSpec:
    """Further random numbers: `size` for each row of each env, float64, drawn before the segment's first step."""

    name: str
    size: int
    distribution: Literal["normal", "uniform"] = "normal"
    """Standard normal, or uniform in [0, 1)."""


@dataclass(frozen=True)
class ActingSpec:
    """How observations become actions.

    `layers` end in logits (categorical), q values (epsilon_greedy) or the mean (gaussian and the
    other continuous heads). `head` is a name of `zmqrl.acting.heads`, or `a.b:Head` of a torch-free module.
    `extras` are the columns that the head fills alongside `action`, each `[T, N, ...]`.
    With `normalise_obs` the weights hold `obs_mean` and `obs_scale` (float64, flat observation):
    the network sees clip((obs - obs_mean) * obs_scale, -obs_clip, obs_clip) as float32.
    """

    layers: tuple[LayerSpec, ...]
    head: str
    action: SpaceSpec
    observation: SpaceSpec
    extras: tuple[ColumnSpec, ...] = ()
    normalise_obs: bool = False
    obs_clip: float = 10.0
    arrays: tuple[str, ...] = ()
    """Names of further arrays the head needs, such as `log_std`."""
    runtime: Literal["numpy", "torch"] = "numpy"
    options: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the head, by name; `Head.takes` has those that a head reads."""
    noise: tuple[NoiseSpec, ...] = ()
    """Drawn in this order, after the noise that every head has (`zmqrl.acting.base.ActingNoise`)."""
    state: tuple[ActingState, ...] = ()
    """Recurrent state. Segments have the columns `state.<name>` and `state_end.<name>` (`zmqrl.acting.state`)."""
    state_every: int = 0
    """Rows between two stored states, a divisor of `env.segment_steps`; 0: that of the segment's first row alone."""
