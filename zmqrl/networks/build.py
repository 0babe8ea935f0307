"""Towers of layers from the `network` section."""

from __future__ import annotations

import json
import math

from zmqrl.config.codec import replace, to_json
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.input import PIXEL, network_input
from zmqrl.networks.kinds.base import known_kinds, layer_kind
from zmqrl.networks.kinds.module import described
from zmqrl.networks.spec import LayerSpec, ModulePart, ModuleSpec
from zmqrl.plugins import did_you_mean
from zmqrl.types import SpaceSpec

HIDDEN_GAIN = math.sqrt(2.0)
BUILT_IN = ("mlp", "cnn")
"""Values of `network.kind` other than a dotted path."""
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
    noisy: bool = False,
    atoms: int = 1,
    joined: int = 0,
) -> tuple[LayerSpec, ...]:
    """The layers from observation to `outputs` numbers, named `<name>.<index>`.

    The widths of the hidden layers are `network.hidden`, or those of `network.hidden_by_tower` for `name`.
    `joined` is the size of a second input, such as an action: it is appended to the flat observation, or to the
    features of the convolutions. `orthogonal=False` takes PyTorch's default initialisation everywhere (gain 0).
    With `noisy` the layers of `network.hidden` and the last one are noisy. `atoms`: how many of the outputs belong to
    one action, such as the logits of a distribution; a dueling layer subtracts the mean over actions for each of them.
    A module of the user's (`network.kind: "a.b:Net"`) is the body: the last layer follows its features.
    Raises `ConfigError` when a `cnn` or a module does not fit the observation, or `network.activation` is unknown, or
    `outputs` is 0.
    """
    check_section(section)
    if outputs < 1:
        raise ConfigError(f"tower {name!r} has {outputs} outputs: the algorithm does not fit the actions of this env")
    body, width = _body(name, section, observation)
    if joined:
        body.append(LayerSpec("concat", inputs=width, outputs=width + joined))
        width += joined
    linear = "noisy" if noisy else "linear"
    for size in _hidden(name, section):
        body.append(LayerSpec(linear, f"{name}.{_count(body)}", width, size, gain=HIDDEN_GAIN))
        body += _activation(name, section, body, section.activation, size)
        width = size
    options = (*[("atoms", float(atoms))] * (atoms > 1), *[("noisy", 1.0)] * noisy) if dueling else ()
    kind = "dueling" if dueling else linear
    body.append(LayerSpec(kind, f"{name}.{_count(body)}", width, outputs, gain=output_gain, options=options))
    return tuple(body) if orthogonal else tuple(replace(layer, gain=0.0) for layer in body)


def check_section(section: NetworkSection) -> None:
    """Raise `ConfigError` when `network.kind` or `network.activation` is unknown, or `network.kwargs` have no use."""
    if not is_module(section):
        if section.kind not in BUILT_IN:
            known = " and ".join(BUILT_IN)
            what = f"{known} are known, or `module:Name` of a torch.nn.Module"
            raise ConfigError(what, key=("network", "kind"), value=repr(section.kind))
        if section.kwargs:
            raise ConfigError(
                f"network.kind {section.kind!r} has no arguments",
                key=("network", "kwargs"),
                value=str(dict(section.kwargs)),
                fix="a torch.nn.Module of your own does",
                others=(("network", "kind"),),
            )
    _check_activation(section.activation)


def _check_activation(name: str) -> None:
    try:
        if (":" in name or name in known_kinds()) and layer_kind(name).is_activation:
            return
        refused = ConfigError(f"layer kind {name!r} is not an activation")
    except ConfigError as error:
        refused = error
    known = [kind for kind in known_kinds() if layer_kind(kind).is_activation]
    fix = f"known: {', '.join(known)}; or `module:Name` of a LayerKind of your own (docs/extending/layer.md)"
    raise refused.of(("network", "activation"), fix=f"{fix}{did_you_mean(name, known)}") from refused.__cause__


def is_module(section: NetworkSection) -> bool:
    """Whether the network is a `torch.nn.Module` of the user's."""
    return ":" in section.kind


def _hidden(tower: str, section: NetworkSection) -> tuple[int, ...]:
    if is_module(section):
        return ()
    return section.hidden_by_tower.get(tower, section.hidden) or ((CNN_FEATURES,) if section.kind == "cnn" else ())


def _body(name: str, section: NetworkSection, observation: SpaceSpec) -> tuple[list[LayerSpec], int]:
    """The layers before the hidden ones, and the width of what they give."""
    if is_module(section):
        return _module(name, section, observation)
    return _cnn(name, section, observation) if section.kind == "cnn" else _flat(section, observation)


def _module(name: str, section: NetworkSection, observation: SpaceSpec) -> tuple[list[LayerSpec], int]:
    spec = network_input(observation, section)
    if observation.kind == "box":
        parts: tuple[ModulePart, ...] = (ModulePart("", spec.shape),)
    else:
        parts = tuple(
            ModulePart(part.part.name, (part.size,) if part.part.space.choices else part.part.space.shape)
            for part in spec.parts
        )
    module = ModuleSpec(section.kind, json.dumps(to_json(section.kwargs), sort_keys=True), parts)
    features = described(module).features
    return [
        *_scale(section, observation),
        LayerSpec("module", f"{name}.0", spec.size, features, module=module),
    ], features


def _activation(
    name: str, section: NetworkSection, below: list[LayerSpec], kind: str, features: int
) -> list[LayerSpec]:
    """An activation of `features` numbers, behind a normalisation if the section has it."""
    if not section.layer_norm:
        return [LayerSpec(kind)]
    return [LayerSpec("layernorm", f"{name}.{_count(below)}", features, features), LayerSpec(kind)]


def _count(layers: list[LayerSpec]) -> int:
    return sum(1 for layer in layers if layer.name)


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
            f"{list(section.kernels)} and strides {list(section.strides)} must have the length of "
            f"network.channels {list(section.channels)}",
            key=("network", "kernels"),
            others=(("network", "channels"),),
        )
    if observation.kind != "box" or len(observation.shape) != 3:
        raise ConfigError(
            "needs observations that are one image, [channels, height, width] or [height, width, "
            f"channels], got {_space(observation)}",
            key=("network", "kind"),
            value="cnn",
            is_subject=True,
            fix="write mlp",
        )
    channels, height, width = network_input(observation, section).shape
    layers = _scale(section, observation)
    for outputs, kernel, stride in zip(section.channels, section.kernels, section.strides, strict=True):
        if kernel > min(height, width):
            what = f"is larger than the remaining image, {height}x{width}"
            raise ConfigError(what, key=("network", "kernels"), value=str(kernel), is_subject=True)
        layers.append(LayerSpec("conv", f"{name}.{_count(layers)}", channels, outputs, kernel, stride, HIDDEN_GAIN))
        channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        layers += _activation(name, section, layers, "relu", channels * height * width)
    layers.append(LayerSpec("flatten"))
    return layers, channels * height * width


def _space(observation: SpaceSpec) -> str:
    if observation.parts:
        return "parts " + ", ".join(f"{part.name} {list(part.space.shape)}" for part in observation.parts)
    return f"{observation.kind if observation.choices else 'shape'} {list(observation.choices or observation.shape)}"
