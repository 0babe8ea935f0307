"""What a worker needs to know to act: plain data, no algorithm, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zmqrl.networks.input import InputSpec, network_input
from zmqrl.networks.kinds.base import runtime_of
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import PREVIOUS, ColumnSpec, SpaceSpec

STATE, NEXT_STATE, NOISE = "state.", "next_state.", "noise."
"""Begin of the names of inputs and outputs of an ONNX graph: recurrent state before and after a step, and noise."""
X, OUTPUTS, WIDTH = "x", "outputs", "K"
"""Names in the graph of a policy: of its input, of its output, and of the size of the output."""


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
class ActingGraph:
    """The layers of a spec as an ONNX graph, without the values of its arrays."""

    model: str
    """The model, in base64. Input `x`: float32 `[N, size]`, what the network sees. Output `outputs` `[N, K]`: what the
    head receives. Arrays are inputs under their names."""
    constants: tuple[str, ...] = ()
    """Arrays that are initializers with external data instead: those of convolutions. ONNX Runtime changes their layout
    when it makes a session, which makes a convolution about twice as fast."""


@dataclass(frozen=True)
class ActingSpec:
    """How observations become actions.

    `layers` end in logits (categorical), q values (epsilon_greedy), or the mean (continuous heads) and, without an
    array `log_std`, the log-std (gaussian, squashed_gaussian). `head` is a name of `zmqrl.acting.heads`, or `a.b:Head`
    of a torch-free module.
    `extras` are the columns that the head fills alongside `action`, each `[T, N, ...]`.
    With `normalise_obs` the weights hold `obs_mean` and `obs_scale` (float64, flat, of the float parts, in the order of
    the observation): the network sees clip((obs - obs_mean) * obs_scale, -obs_clip, obs_clip) of these parts, float32.
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
    runtime: Literal["auto", "numpy", "torch", "onnx"] = "auto"
    """What computes the layers. auto is replaced at once: numpy, or torch if a layer needs it. onnx: `graph` is there;
    the launcher sets both (`network.runtime`)."""
    input: InputSpec | None = None
    """What the network sees of an observation; None: `zmqrl.networks.input.network_input(observation)`."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the head, by name; `Head.takes` has those that a head reads."""
    noise: tuple[NoiseSpec, ...] = ()
    """Drawn in this order, after the noise that every head has (`zmqrl.acting.base.ActingNoise`)."""
    state: tuple[ActingState, ...] = ()
    """Recurrent state. Segments have the columns `state.<name>` and `state_end.<name>` (`zmqrl.acting.state`)."""
    state_every: int = 0
    """Rows between two stored states, a divisor of `env.segment_steps`; 0: that of the segment's first row alone."""
    graph: ActingGraph | None = None
    """Graph of the runtime onnx."""
    previous: bool = False
    """The network sees the action and the reward of the row before too: its layer `concat` appends the recurrent state
    `previous`, which the spec adds to `state`."""

    def __post_init__(self) -> None:
        if self.runtime == "auto":
            object.__setattr__(self, "runtime", runtime_of(self.layers))
        if self.previous and all(state.name != PREVIOUS for state in self.state):
            added = ActingState(PREVIOUS, previous_size(self.action))
            object.__setattr__(self, "state", (*self.state, added))


def previous_size(action: SpaceSpec) -> int:
    """Numbers of the state `previous`: those of an action, a discrete entry as one-hot, and the reward."""
    return network_input(action).size + 1
