"""From the `network` section to towers of layers."""

from __future__ import annotations

import math
from dataclasses import replace

from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.input import PIXEL, network_input
from zmqrl.networks.kinds.base import known_kinds, layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import SpaceSpec

HIDDEN_GAIN = math.sqrt(2.0)
CNN_FEATURES = 512
"""Width of the linear layer after the convolutions when `network.hidden` is empty (Mnih et al. 2015)."""


def tower(
    name: str,
    section: NetworkSection,
    observation: SpaceSpec,
    outputs: int,
    *,
    output_gain: float,
    orthogonal: bool = True,
    dueling: bool = False,
    joined: int = 0,
) -> tuple[LayerSpec, ...]:
    """The layers from observation to `outputs` numbers, named `<name>.<index>`.

    `joined` is the size of a second input, such as an action: it is appended to the flat observation, or to the
    features of the convolutions. `orthogonal=False` takes PyTorch's default initialisation everywhere (gain 0).
    Raises `ConfigError` when a `cnn` does not fit the observation, or `network.activation` is unknown.
    """
    check_section(section)
    body, width = _cnn(name, section, observation) if section.kind == "cnn" else _flat(section, observation)
    if joined:
        body.append(LayerSpec("concat", inputs=width, outputs=width + joined))
        width += joined
    hidden = section.hidden or ((CNN_FEATURES,) if section.kind == "cnn" else ())
    for size in hidden:
        body.append(LayerSpec("linear", f"{name}.{_count(body)}", width, size, gain=HIDDEN_GAIN))
        body += _activation(name, section, body, section.activation, size)
        width = size
    last = f"{name}.{_count(body)}"
    body.append(LayerSpec("dueling" if dueling else "linear", last, width, outputs, gain=output_gain))
    return tuple(body) if orthogonal else tuple(_default_gain(layer) for layer in body)


def check_section(section: NetworkSection) -> None:
    """Raise `ConfigError` when `network.activation` is unknown, or not an activation."""
    try:
        kind = layer_kind(section.activation)
    except ConfigError as error:
        raise ConfigError(f"network.activation: {error}") from error
    if not kind.is_activation:
        known = ", ".join(name for name in known_kinds() if layer_kind(name).is_activation)
        raise ConfigError(
            f"network.activation: layer kind {section.activation!r} is not an activation (known: {known}; "
            "or a dotted path `module:Name`)"
        )


def _activation(
    name: str, section: NetworkSection, below: list[LayerSpec], kind: str, features: int
) -> list[LayerSpec]:
    """An activation of `features` numbers, behind a normalisation if the section has it."""
    if not section.layer_norm:
        return [LayerSpec(kind)]
    return [LayerSpec("layernorm", f"{name}.{_count(below)}", features, features), LayerSpec(kind)]


def _count(layers: list[LayerSpec]) -> int:
    return sum(1 for layer in layers if layer.name)


def _default_gain(layer: LayerSpec) -> LayerSpec:
    return replace(layer, gain=0.0)


def _flat(section: NetworkSection, observation: SpaceSpec) -> tuple[list[LayerSpec], int]:
    spec = network_input(observation, section)
    layers = _scale(section, observation)
    if len(spec.shape) != 1:
        layers.append(LayerSpec("flatten"))
    return layers, spec.size


def _scale(section: NetworkSection, observation: SpaceSpec) -> list[LayerSpec]:
    return [LayerSpec("scale", inputs=PIXEL)] if observation.is_image and section.scale_images else []


def _cnn(name: str, section: NetworkSection, observation: SpaceSpec) -> tuple[list[LayerSpec], int]:
    if not len(section.channels) == len(section.kernels) == len(section.strides):
        raise ConfigError(
            f"network.kernels: {list(section.kernels)} and strides {list(section.strides)} must have the length of "
            f"network.channels {list(section.channels)}"
        )
    if observation.kind != "box" or len(observation.shape) != 3:
        raise ConfigError(
            "network.kind: cnn needs observations that are one image, [channels, height, width] or [height, width, "
            f"channels], got {_described(observation)}; write mlp"
        )
    channels, height, width = network_input(observation, section).shape
    layers = _scale(section, observation)
    for outputs, kernel, stride in zip(section.channels, section.kernels, section.strides, strict=True):
        if kernel > min(height, width):
            raise ConfigError(f"network.kernels: {kernel} is larger than the remaining image, {height}x{width}")
        layers.append(LayerSpec("conv", f"{name}.{_count(layers)}", channels, outputs, kernel, stride, HIDDEN_GAIN))
        channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        layers += _activation(name, section, layers, "relu", channels * height * width)
    layers.append(LayerSpec("flatten"))
    return layers, channels * height * width


def _described(observation: SpaceSpec) -> str:
    if observation.parts:
        return "parts " + ", ".join(f"{part.name} {list(part.space.shape)}" for part in observation.parts)
    return f"{observation.kind if observation.choices else 'shape'} {list(observation.choices or observation.shape)}"
