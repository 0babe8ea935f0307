"""A greedy policy as plain data: what both forms of an export are made of, and the content of `policy.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.input import InputPart, InputSpec, network_input
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.spaces import SpaceSpec
from zmqrl.types import Array, Weights

FORMAT = 1
"""Format of `policy.json`: raised when its readers have to change."""
LOW, HIGH = "action.low", "action.high"
"""Arrays of the bounds of the actions, flat float32."""
REWARD = "previous_reward"
"""Input of a graph with the state `previous`."""
HEADS: Mapping[str, str] = {
    "categorical": "argmax",
    "multi_categorical": "argmax",
    "epsilon_greedy": "argmax",
    "zmqrl.acting.first_priority:FirstPriority": "argmax",
    "zmqrl.acting.quantile:QuantileGreedy": "argmax",
    "gaussian": "clip",
    "squashed_gaussian": "tanh",
    "deterministic_noise": "unit",
}
"""Head to how its greedy action follows from the outputs.

argmax: of each entry, after the mean over quantiles. clip: to the bounds, if there are any. tanh, unit: tanh of the
outputs, or the outputs clipped to [-1, 1]; scaled to the bounds.
"""


@dataclass(frozen=True)
class ObservedPart:
    """A part of an observation as the env gives it, and what the network sees of it."""

    name: str
    path: tuple[str | int, ...]
    """Keys and indices from the observation to it."""
    shape: tuple[int, ...]
    dtype: str
    size: int
    """Numbers that the network sees."""
    choices: tuple[int, ...] = ()
    """Values per entry of a discrete part, which the network sees as one-hot."""
    starts: tuple[int, ...] = ()
    """The least value of each entry."""
    divisor: int = 1
    statistics: int = -1
    """Begin in the arrays `obs_mean` and `obs_scale`, whose order is that of the network's input; -1: it is not
    normalised."""


@dataclass(frozen=True)
class ExportedLayer:
    """A layer; its arrays are `<name>.<array>` as in `zmqrl.networks.kinds`."""

    kind: str
    name: str = ""
    inputs: int = 0
    stride: int = 1
    epsilon: float = 0.0
    numbers: tuple[float, ...] = ()
    """Atoms of `expectation`, fractions of `cosine`."""


@dataclass(frozen=True)
class Action:
    """Actions as the env takes them, and how they follow from the outputs of the network."""

    head: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    """Numbers of an action."""
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    quantiles: int = 1
    bounded: bool = False
    """Whether the arrays `action.low` and `action.high` are there."""


@dataclass(frozen=True)
class GreedyPolicy:
    """All of it. Arrays are in `policy.safetensors`."""

    format: int
    parts: tuple[ObservedPart, ...]
    shape: tuple[int, ...]
    """Shape of the input of the network for one row."""
    channels_last: bool
    """The observation is an image [height, width, channels], which is transposed."""
    clip: float
    """Bound of normalised numbers."""
    mask: ObservedPart | None
    """The part with the allowed actions."""
    layers: tuple[ExportedLayer, ...]
    state: Mapping[str, int]
    """Recurrent state: its size by the name of its layer; zero where an episode begins.

    That of `previous`: the numbers of the last action, one-hot as those of a discrete part, then the last reward.
    """
    action: Action


def greedy_policy(spec: ActingSpec) -> GreedyPolicy:
    """The greedy policy of an acting spec.

    Raises:
        ConfigError: The head is not one of zmqrl.
    """
    described = _input_of(spec)
    mask = spec.observation.action_mask
    return GreedyPolicy(
        FORMAT,
        tuple(_part(part, spec.normalise_obs) for part in described.parts),
        described.shape,
        described.channels_last,
        spec.obs_clip,
        None if mask is None else ObservedPart(mask.name, mask.path, mask.space.shape, mask.space.dtype, 0),
        tuple(map(layer_of, spec.layers)),
        {state.name: state.size for state in spec.state},
        _action(spec),
    )


def arrays_of(policy: GreedyPolicy, spec: ActingSpec, weights: Weights) -> dict[str, Array]:
    """The arrays that the policy needs, and no others."""
    names = tuple(f"{layer.name}." for layer in policy.layers if layer.name)
    arrays = {name: np.array(array, order="C") for name, array in weights.items() if name.startswith(names)}
    if any(part.statistics >= 0 for part in policy.parts):
        arrays |= _input_of(spec).statistics(weights)
    if policy.action.bounded:
        arrays |= {LOW: np.array(spec.action.low, np.float32), HIGH: np.array(spec.action.high, np.float32)}
    return arrays


def _input_of(spec: ActingSpec) -> InputSpec:
    return spec.input or network_input(spec.observation)


def _part(part: InputPart, normalised: bool) -> ObservedPart:
    space = part.part.space
    return ObservedPart(
        part.part.name or "obs",
        part.part.path,
        space.env_shape if space.kind == "multi_discrete" else space.shape,
        space.dtype,
        part.size,
        space.choices,
        _starts(space),
        part.divisor,
        part.statistics if normalised else -1,
    )


def _starts(space: SpaceSpec) -> tuple[int, ...]:
    return (space.start,) if space.kind == "discrete" else space.starts or (0,) * len(space.choices)


def layer_of(spec: LayerSpec) -> ExportedLayer:
    """What an export needs to know of a layer."""
    kind = layer_kind(spec.kind)
    numbers = tuple(kind.constants(spec).tolist())
    epsilon = kind.option(spec, "epsilon") if spec.kind == "layernorm" else 0.0
    return ExportedLayer(spec.kind, spec.name, spec.inputs, spec.stride, epsilon, numbers)


def _action(spec: ActingSpec) -> Action:
    if spec.head not in HEADS:
        raise ConfigError(f"head {spec.head!r} cannot be exported", fix=f"those of zmqrl can: {', '.join(HEADS)}")
    space, is_discrete = spec.action, bool(spec.action.choices)
    return Action(
        HEADS[spec.head],
        space.env_dtype or space.dtype,
        space.env_shape if space.kind == "multi_discrete" else space.shape,
        len(space.choices) if is_discrete else int(np.prod(space.shape)),
        space.choices,
        _starts(space),
        int(spec.options.get("quantiles", 1)),
        not is_discrete and bool(space.low and space.high),
    )
