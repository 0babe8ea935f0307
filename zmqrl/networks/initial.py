"""Version 0: a network's first weights from its spec, in numpy, so that no process needs torch for it."""

from __future__ import annotations

import math

import numpy as np

from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.types import Array


def parameter_shapes(spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, in the order of towers and layers, free parameters last."""
    shapes: dict[str, tuple[int, ...]] = {}
    for _, layers in spec.towers:
        for layer in layers:
            shapes.update(_layer_shapes(layer))
    shapes.update((name, shape) for name, shape, _ in spec.parameters)
    return shapes


def initial_weights(spec: NetworkSpec, seed: int) -> dict[str, Array]:
    """float32 arrays of every tensor of `spec`, the same for a seed on every machine of one CPU type.

    Orthogonal with the layer's gain and bias 0 (Saxe et al. 2014), or, with gain 0, uniform within
    +-1/sqrt(fan in) for weight and bias (PyTorch's default).
    """
    weights: dict[str, Array] = {}
    for _, layers in spec.towers:
        for layer in layers:
            generator = stream(seed, f"initial/{layer.name}")
            for name, shape in _layer_shapes(layer):
                weights[name] = _draw(generator, shape, _fan_in(layer), layer.gain)
    for name, shape, value in spec.parameters:
        weights[name] = np.full(shape, value, dtype=np.float32)
    return weights


def _layer_shapes(layer: LayerSpec) -> list[tuple[str, tuple[int, ...]]]:
    name, inputs, outputs = layer.name, layer.inputs, layer.outputs
    if layer.kind == "linear":
        return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]
    if layer.kind == "conv":
        kernel = (layer.kernel, layer.kernel)
        return [(f"{name}.weight", (outputs, inputs, *kernel)), (f"{name}.bias", (outputs,))]
    if layer.kind == "dueling":
        value = [(f"{name}.value.weight", (1, inputs)), (f"{name}.value.bias", (1,))]
        return [*value, (f"{name}.advantage.weight", (outputs, inputs)), (f"{name}.advantage.bias", (outputs,))]
    return []


def _fan_in(layer: LayerSpec) -> int:
    return layer.inputs * (layer.kernel**2 if layer.kind == "conv" else 1)


def _draw(generator: np.random.Generator, shape: tuple[int, ...], fan_in: int, gain: float) -> Array:
    if gain == 0.0:
        bound = 1.0 / math.sqrt(fan_in)
        return generator.uniform(-bound, bound, shape).astype(np.float32)
    if len(shape) == 1:
        return np.zeros(shape, dtype=np.float32)
    return orthogonal(generator, shape, gain)


def orthogonal(generator: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Rows (or columns, whichever are fewer) of `[outputs, rest]` orthonormal, times `gain`; float32."""
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    # QR leaves the signs open; fixing the diagonal of R makes q uniform over the orthogonal group (Mezzadri 2007).
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray((q if rows >= columns else q.T).reshape(shape) * gain, dtype=np.float32)
