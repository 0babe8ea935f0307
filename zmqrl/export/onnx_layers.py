"""Layers as operations of an ONNX graph: those of zmqrl here, all others by torch (`zmqrl.export.torch_layer`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from zmqrl.acting.spec import NEXT_STATE, NOISE, STATE
from zmqrl.acting.state import noise_of
from zmqrl.export.onnx_graph import Graph
from zmqrl.export.spec import ExportedLayer, layer_of
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Weights


def forward(graph: Graph, layers: tuple[LayerSpec, ...], arrays: Weights, x: str) -> str:
    """The output of layers for the value `x`. Recurrent state, and the noise of a graph that explores, are inputs.

    Raises:
        ConfigError: A layer of the user's cannot be exported.
    """
    for number, spec in enumerate(layers):
        make = LAYERS.get(spec.kind)
        x = _traced(graph, spec, arrays, x, number) if make is None else make(graph, layer_of(spec), arrays, x)
    return x


def _traced(graph: Graph, spec: LayerSpec, arrays: Weights, x: str, number: int) -> str:
    """A layer of the user's: a torch module, or a kind of its own. It receives flat rows, and an activation too."""
    from zmqrl.export.torch_layer import traced

    kind = layer_kind(spec.kind)
    state, noise = kind.state_size(spec), sum(one.size for one in noise_of((spec,))) if graph.explores else 0
    values = [graph.op("Flatten", x, axis=1)]
    values += [graph.input(f"{STATE}{spec.name}", "float32", (state,))] if state else []
    values += [graph.input(f"{NOISE}{spec.name}", "float32", (noise,))] if noise else []
    values += [graph.parameter(name, arrays[name]) for name in kind.shapes(spec)]
    outputs = graph.inline(traced(spec, arrays, f"layer{number}/", noise), values)
    if state:
        graph.output(f"{NEXT_STATE}{spec.name}", outputs[1], "float32", (state,))
    return graph.op("Reshape", outputs[0], graph.op("Shape", x)) if kind.is_activation else outputs[0]


def _linear(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str, part: str = "") -> str:
    weight, bias = (
        graph.parameter(name, arrays[name]) for name in (f"{layer.name}{part}.{k}" for k in ("weight", "bias"))
    )
    return graph.op("Gemm", x, weight, bias, transB=1)


def _dueling(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    value, advantage = _noisy_parts(graph, layer, arrays, x, ".value", ".advantage")
    atoms, outputs = (len(arrays[f"{layer.name}.{part}.bias"]) for part in ("value", "advantage"))
    if atoms > 1:
        value, advantage = graph.reshape(value, (1, atoms)), graph.reshape(advantage, (outputs // atoms, atoms))
    mean = graph.op("ReduceMean", advantage, graph.constant([1]), keepdims=1)
    found = graph.op("Add", graph.op("Sub", advantage, mean), value)
    return graph.reshape(found, (outputs,)) if atoms > 1 else found


def _expectation(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    atoms = np.array(layer.numbers, np.float32)
    actions = layer.inputs // len(atoms)
    p = graph.op("Softmax", graph.reshape(x, (actions, len(atoms))), axis=2)
    return graph.reshape(graph.op("MatMul", p, graph.constant(atoms[:, None])), (actions,))


def _cosine(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    count = arrays[f"{layer.name}.weight"].shape[1]
    cosines = graph.constant(np.cos(np.pi * np.outer(layer.numbers, np.arange(count))).astype(np.float32))
    embedding = graph.op("Relu", _linear(graph, layer, arrays, cosines))
    return graph.op("Mul", x, graph.op("ReduceMean", embedding, graph.constant([0]), keepdims=1))


def _conv(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    weight, bias = (graph.parameter(name, arrays[name]) for name in (f"{layer.name}.weight", f"{layer.name}.bias"))
    return graph.op("Conv", x, weight, bias, strides=[layer.stride, layer.stride])


def _layernorm(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    """Over all features, also of an image."""
    shape, flat = graph.op("Shape", x), graph.op("Flatten", x, axis=1)
    weight, bias = (graph.parameter(name, arrays[name]) for name in (f"{layer.name}.weight", f"{layer.name}.bias"))
    return graph.op("Reshape", graph.op("LayerNormalization", flat, weight, bias, epsilon=layer.epsilon), shape)


def _gate_sums(graph: Graph, layer: ExportedLayer, arrays: Weights, value: str, side: str) -> str:
    names = (f"{layer.name}.{array}_{side}" for array in ("weight", "bias"))
    weight, bias = (graph.parameter(name, arrays[name]) for name in names)
    return graph.op("Gemm", value, weight, bias, transB=1)


def _lstm(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    size = arrays[f"{layer.name}.weight_hh"].shape[1]
    state = graph.input(f"{STATE}{layer.name}", "float32", (2 * size,))
    h, c = graph.slice(state, 0, size), graph.slice(state, size, 2 * size)
    sums = (_gate_sums(graph, layer, arrays, value, side) for value, side in ((x, "ih"), (h, "hh")))
    gates = graph.ops("Split", 4, graph.op("Add", *sums), axis=1, num_outputs=4)
    enter, forget, leave = (graph.op("Sigmoid", gates[i]) for i in (0, 1, 3))
    c = graph.op("Add", graph.op("Mul", forget, c), graph.op("Mul", enter, graph.op("Tanh", gates[2])))
    h = graph.op("Mul", leave, graph.op("Tanh", c))
    graph.output(f"{NEXT_STATE}{layer.name}", graph.op("Concat", h, c, axis=1), "float32", (2 * size,))
    return h


def _gru(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    size = arrays[f"{layer.name}.weight_hh"].shape[1]
    h = graph.input(f"{STATE}{layer.name}", "float32", (size,))
    sums = (_gate_sums(graph, layer, arrays, value, side) for value, side in ((x, "ih"), (h, "hh")))
    ours, theirs = (graph.ops("Split", 3, value, axis=1, num_outputs=3) for value in sums)
    reset, update = (graph.op("Sigmoid", graph.op("Add", ours[i], theirs[i])) for i in (0, 1))
    new = graph.op("Tanh", graph.op("Add", ours[2], graph.op("Mul", reset, theirs[2])))
    after = graph.op("Add", new, graph.op("Mul", update, graph.op("Sub", h, new)))
    graph.output(f"{NEXT_STATE}{layer.name}", after, "float32", (size,))
    return after


def _noisy_parts(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str, *parts: str) -> list[str]:
    """Linear parts of a layer. In a graph that explores, those with a deviation have noise, side by side."""
    means = [_linear(graph, layer, arrays, x, part) for part in parts]
    if not graph.explores or f"{layer.name}{parts[0]}.bias_sigma" not in arrays:
        return means
    widths = [len(arrays[f"{layer.name}{part}.bias"]) for part in parts]
    noise = graph.input(f"{NOISE}{layer.name}", "float32", (len(parts) * layer.inputs + sum(widths),))
    scaled = graph.op("Mul", graph.op("Sign", noise), graph.op("Sqrt", graph.op("Abs", noise)))
    found, begin = [], 0
    for part, mean, width in zip(parts, means, widths, strict=True):
        middle, end = begin + layer.inputs, begin + layer.inputs + width
        by_input, by_output = graph.slice(scaled, begin, middle), graph.slice(scaled, middle, end)
        names = (f"{layer.name}{part}.{array}_sigma" for array in ("weight", "bias"))
        sigma, bias_sigma = (graph.parameter(name, arrays[name]) for name in names)
        spread = graph.op("Gemm", graph.op("Mul", x, by_input), sigma, bias_sigma, transB=1)
        found.append(graph.op("Add", mean, graph.op("Mul", by_output, spread)))
        begin = end
    return found


def _noisy(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    return _noisy_parts(graph, layer, arrays, x, "")[0]


def _concat(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    return graph.op("Concat", graph.op("Flatten", x, axis=1), graph.previous, axis=1)


def _gelu(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    cubic, scale, one, half = (
        graph.constant(np.array(number, np.float32)) for number in (0.044715, (2 / np.pi) ** 0.5, 1.0, 0.5)
    )
    inner = graph.op("Add", x, graph.op("Mul", cubic, graph.op("Mul", x, graph.op("Mul", x, x))))
    tanh = graph.op("Tanh", graph.op("Mul", inner, scale))
    return graph.op("Mul", graph.op("Mul", x, half), graph.op("Add", tanh, one))


def _scale(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    return graph.op("Div", x, graph.constant(np.array(layer.inputs, np.float32)))


def _silu(graph: Graph, layer: ExportedLayer, arrays: Weights, x: str) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


LAYERS: Mapping[str, Callable[[Graph, ExportedLayer, Weights, str], str]] = {
    "linear": _linear,
    "noisy": _noisy,
    "concat": _concat,
    "dueling": _dueling,
    "expectation": _expectation,
    "cosine": _cosine,
    "conv": _conv,
    "layernorm": _layernorm,
    "gru": _gru,
    "lstm": _lstm,
    "scale": _scale,
    "gelu": _gelu,
    "silu": _silu,
    "flatten": lambda graph, layer, arrays, x: graph.op("Flatten", x, axis=1),
    "tanh": lambda graph, layer, arrays, x: graph.op("Tanh", x),
    "relu": lambda graph, layer, arrays, x: graph.op("Relu", x),
}
