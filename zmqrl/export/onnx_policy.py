"""A greedy policy as an ONNX model: observations as the env gives them in, actions as the env takes them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from zmqrl.export.onnx_graph import Graph
from zmqrl.export.spec import HIGH, LOW, GreedyPolicy, Layer, Part
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

STATE, NEXT_STATE = "state.", "next_state."
"""Begin of the names of the recurrent state, before and after the action."""
FORBIDDEN = np.float32(-1e30)


def onnx_model(
    policy: GreedyPolicy, layers: tuple[LayerSpec, ...], arrays: Weights, version: str, description: str
) -> onnx.ModelProto:
    """The model.

    Args:
        policy: What it computes.
        layers: Of the acting spec, for layers that torch exports.
        arrays: Of `arrays_of`.
        version: Of zmqrl.
        description: Text in the model.

    Raises:
        ConfigError: A layer of the user's cannot be exported.
    """
    graph = Graph()
    x = _input(graph, policy, arrays)
    for number, (layer, spec) in enumerate(zip(policy.layers, layers, strict=True)):
        make = LAYERS.get(layer.kind)
        x = _traced(graph, spec, arrays, x, number) if make is None else make(graph, layer, arrays, x)
    _output(graph, policy, arrays, graph.op("Flatten", x, axis=1))
    return graph.model(version, description)


def _input(graph: Graph, policy: GreedyPolicy, arrays: Weights) -> str:
    columns = [_column(graph, policy, part, arrays) for part in policy.parts]
    flat = columns[0] if len(columns) == 1 else graph.op("Concat", *columns, axis=1)
    return graph.reshape(flat, policy.shape)


def _column(graph: Graph, policy: GreedyPolicy, part: Part, arrays: Weights) -> str:
    rows = graph.input(part.name, part.dtype, part.shape)
    if part.choices:
        return _one_hot(graph, part, rows)
    if policy.channels_last:
        rows = graph.op("Transpose", rows, perm=[0, 3, 1, 2])
    rows = graph.reshape(rows, (part.size,))
    if part.statistics >= 0:
        at = slice(part.statistics, part.statistics + part.size)
        exact = graph.op("Sub", graph.cast(rows, "float64"), graph.constant(arrays["obs_mean"][at]))
        exact = graph.op("Mul", exact, graph.constant(arrays["obs_scale"][at]))
        bounds = (graph.constant(np.array(bound, np.float64)) for bound in (-policy.clip, policy.clip))
        rows = graph.op("Clip", exact, *bounds)
    rows = graph.cast(rows, "float32")
    return rows if part.divisor == 1 else graph.op("Div", rows, graph.constant(np.float32(part.divisor)))


def _one_hot(graph: Graph, part: Part, rows: str) -> str:
    entries = graph.reshape(graph.cast(rows, "int64"), (len(part.choices),))
    entries = graph.op("Sub", entries, graph.constant(list(part.starts)))
    off_on = graph.constant(np.array([0.0, 1.0], np.float32))
    hot = [
        graph.op("OneHot", _slice(graph, entries, i, i + 1), graph.constant([n]), off_on)
        for i, n in enumerate(part.choices)
    ]
    flat = [graph.reshape(one, (n,)) for one, n in zip(hot, part.choices, strict=True)]
    return graph.op("Concat", *flat, axis=1)


def _slice(graph: Graph, value: str, begin: int, end: int) -> str:
    return graph.op("Slice", value, graph.constant([begin]), graph.constant([end]), graph.constant([1]))


def _output(graph: Graph, policy: GreedyPolicy, arrays: Weights, outputs: str) -> None:
    action = policy.action
    if action.head == "argmax":
        found = _argmax(graph, policy, outputs)
    elif action.head == "clip":
        found = _clipped(graph, outputs, arrays[LOW], arrays[HIGH]) if action.bounded else outputs
    else:
        found = _scaled(graph, policy, arrays, outputs)
    found = graph.reshape(graph.cast(found, action.dtype), action.shape)
    graph.output("action", found, action.dtype, action.shape, first=True)


def _argmax(graph: Graph, policy: GreedyPolicy, outputs: str) -> str:
    action = policy.action
    if action.quantiles > 1:
        outputs = graph.reshape(outputs, (sum(action.choices), action.quantiles))
        outputs = graph.op("ReduceMean", outputs, graph.constant([2]), keepdims=0)
    if policy.mask is not None:
        mask = graph.cast(graph.input(policy.mask.name, policy.mask.dtype, policy.mask.shape), "bool")
        outputs = graph.op("Where", mask, outputs, graph.constant(FORBIDDEN))
    ends = np.cumsum(action.choices).tolist()
    begins = [0, *ends[:-1]]
    entries = [
        graph.op("ArgMax", _slice(graph, outputs, begin, end), axis=1, keepdims=1)
        for begin, end in zip(begins, ends, strict=True)
    ]
    return graph.op("Add", graph.op("Concat", *entries, axis=1), graph.constant(list(action.starts)))


def _scaled(graph: Graph, policy: GreedyPolicy, arrays: Weights, outputs: str) -> str:
    """From [-1, 1] to the bounds."""
    outputs = _slice(graph, outputs, 0, policy.action.size)
    one = np.float32(1.0)
    fraction = graph.op("Tanh", outputs) if policy.action.head == "tanh" else _clipped(graph, outputs, -one, one)
    half = (arrays[HIGH] - arrays[LOW]) * np.float32(0.5)
    above = graph.op("Mul", graph.op("Add", fraction, graph.constant(one)), graph.constant(half))
    return graph.op("Add", above, graph.constant(arrays[LOW]))


def _clipped(graph: Graph, value: str, low: Array | np.float32, high: Array | np.float32) -> str:
    return graph.op("Min", graph.op("Max", value, graph.constant(np.array(low))), graph.constant(np.array(high)))


def _linear(graph: Graph, layer: Layer, arrays: Weights, x: str, part: str = "") -> str:
    weight, bias = (
        graph.constant(arrays[name], name) for name in (f"{layer.name}{part}.{k}" for k in ("weight", "bias"))
    )
    return graph.op("Gemm", x, weight, bias, transB=1)


def _dueling(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    value, advantage = (_linear(graph, layer, arrays, x, part) for part in (".value", ".advantage"))
    mean = graph.op("ReduceMean", advantage, graph.constant([1]), keepdims=1)
    return graph.op("Add", graph.op("Sub", advantage, mean), value)


def _conv(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    weight, bias = (graph.constant(arrays[name], name) for name in (f"{layer.name}.weight", f"{layer.name}.bias"))
    return graph.op("Conv", x, weight, bias, strides=[layer.stride, layer.stride])


def _layernorm(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    """Over all features, also of an image."""
    shape, flat = graph.op("Shape", x), graph.op("Flatten", x, axis=1)
    weight, bias = (graph.constant(arrays[name], name) for name in (f"{layer.name}.weight", f"{layer.name}.bias"))
    return graph.op("Reshape", graph.op("LayerNormalization", flat, weight, bias, epsilon=layer.epsilon), shape)


def _gru(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    w = {part: arrays[f"{layer.name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    size = w["weight_hh"].shape[1]
    h = graph.input(f"{STATE}{layer.name}", "float32", (size,))
    gates = []
    for value, side in ((x, "ih"), (h, "hh")):
        names = (f"{layer.name}.{array}_{side}" for array in ("weight", "bias"))
        weight, bias = (graph.constant(arrays[name], name) for name in names)
        gates.append(graph.ops("Split", 3, graph.op("Gemm", value, weight, bias, transB=1), axis=1, num_outputs=3))
    ours, theirs = gates
    reset, update = (graph.op("Sigmoid", graph.op("Add", ours[i], theirs[i])) for i in (0, 1))
    new = graph.op("Tanh", graph.op("Add", ours[2], graph.op("Mul", reset, theirs[2])))
    after = graph.op("Add", new, graph.op("Mul", update, graph.op("Sub", h, new)))
    graph.output(f"{NEXT_STATE}{layer.name}", after, "float32", (size,))
    return after


def _gelu(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    del layer, arrays
    cubic, scale, one, half = (
        graph.constant(np.array(number, np.float32)) for number in (0.044715, (2 / np.pi) ** 0.5, 1.0, 0.5)
    )
    inner = graph.op("Add", x, graph.op("Mul", cubic, graph.op("Mul", x, graph.op("Mul", x, x))))
    tanh = graph.op("Tanh", graph.op("Mul", inner, scale))
    return graph.op("Mul", graph.op("Mul", x, half), graph.op("Add", tanh, one))


def _traced(graph: Graph, spec: LayerSpec, arrays: Weights, x: str, number: int) -> str:
    """A layer of the user's: a torch module, or a kind of its own. It receives flat rows, and an activation too."""
    from zmqrl.export.torch_layer import traced

    inlined = graph.inline(traced(spec, arrays, f"layer{number}/"), graph.op("Flatten", x, axis=1))
    return graph.op("Reshape", inlined, graph.op("Shape", x)) if layer_kind(spec.kind).is_activation else inlined


def _scale(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    del arrays
    return graph.op("Div", x, graph.constant(np.array(layer.inputs, np.float32)))


def _silu(graph: Graph, layer: Layer, arrays: Weights, x: str) -> str:
    del layer, arrays
    return graph.op("Mul", x, graph.op("Sigmoid", x))


LAYERS: Mapping[str, Callable[[Graph, Layer, Weights, str], str]] = {
    "linear": _linear,
    "noisy": _linear,
    "dueling": _dueling,
    "conv": _conv,
    "layernorm": _layernorm,
    "gru": _gru,
    "scale": _scale,
    "gelu": _gelu,
    "silu": _silu,
    "flatten": lambda graph, layer, arrays, x: graph.op("Flatten", x, axis=1),
    "tanh": lambda graph, layer, arrays, x: graph.op("Tanh", x),
    "relu": lambda graph, layer, arrays, x: graph.op("Relu", x),
}
