"""Version 0: a network's first weights from its spec, in numpy, so that no process needs torch for it."""

from __future__ import annotations

from zmqrl.loading import np
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.types import Array


def parameter_shapes(spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, in the order of towers and layers, free parameters last.

    Raises:
        ConfigError: The kind of a layer is unknown.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for _, layers in spec.towers:
        for layer in layers:
            shapes.update(layer_kind(layer.kind).shapes(layer))
    shapes.update((name, shape) for name, shape, _ in spec.parameters)
    return shapes


def buffer_names(spec: NetworkSpec) -> frozenset[str]:
    """The tensors that no gradient changes."""
    layers = (layer for _, tower in spec.towers for layer in tower)
    return frozenset(name for layer in layers for name in layer_kind(layer.kind).buffers(layer))


def initial_weights(spec: NetworkSpec, seed: int) -> dict[str, Array]:
    """float32 arrays of every tensor of `spec`, the same for a seed on every machine of one CPU type.

    Raises:
        ConfigError: The kind of a layer is unknown.
    """
    weights: dict[str, Array] = {}
    for _, layers in spec.towers:
        for layer in layers:
            kind = layer_kind(layer.kind)
            if kind.shapes(layer):
                weights.update(kind.initial(layer, stream(seed, f"initial/{layer.name}")))
    for name, shape, value in spec.parameters:
        weights[name] = np.full(shape, value, dtype=np.float32)
    return weights
