"""A greedy policy as an ONNX model: observations as the env gives them in, actions as the env takes them out."""

from __future__ import annotations

import numpy as np
import onnx

from zmqrl.acting.spec import NEXT_STATE, STATE
from zmqrl.export.onnx_graph import Graph
from zmqrl.export.onnx_layers import forward
from zmqrl.export.spec import HIGH, LOW, REWARD, Action, GreedyPolicy, ObservedPart
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import PREVIOUS, Array, Weights

FORBIDDEN = np.float32(-1e30)


def onnx_model(
    policy: GreedyPolicy, layers: tuple[LayerSpec, ...], arrays: Weights, version: str, description: str
) -> onnx.ModelProto:
    """The model of a policy; `arrays` are those of `arrays_of`.

    `layers`: of the acting spec, for layers that torch exports. `version`: of zmqrl. `description`: text in the model.

    Raises:
        ConfigError: A layer of the user's cannot be exported.
    """
    graph = Graph()
    x = _input(graph, policy, arrays)
    if PREVIOUS in policy.state:
        graph.previous = _previous(graph, policy.state[PREVIOUS])
    x = forward(graph, layers, arrays, x)
    found = _actions(graph, policy, arrays, graph.op("Flatten", x, axis=1))
    _output(graph, policy, found)
    return graph.model(version, description)


def _previous(graph: Graph, size: int) -> str:
    """The state `previous`. The reward replaces its last number, which is 1, and stays 0 where an episode begins."""
    held, last = graph.input(STATE + PREVIOUS, "float32", (size,)), size - 1
    reward = graph.reshape(graph.input(REWARD, "float32", ()), (1,))
    one = graph.slice(held, last, size)
    reward = graph.op("Where", graph.cast(one, "bool"), reward, one)
    return graph.op("Concat", graph.slice(held, 0, last), reward, axis=1)


def _input(graph: Graph, policy: GreedyPolicy, arrays: Weights) -> str:
    columns = [_column(graph, policy, part, arrays) for part in policy.parts]
    flat = columns[0] if len(columns) == 1 else graph.op("Concat", *columns, axis=1)
    return graph.reshape(flat, policy.shape)


def _column(graph: Graph, policy: GreedyPolicy, part: ObservedPart, arrays: Weights) -> str:
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


def _one_hot(graph: Graph, part: ObservedPart | Action, rows: str) -> str:
    entries = graph.reshape(graph.cast(rows, "int64"), (len(part.choices),))
    entries = graph.op("Sub", entries, graph.constant(list(part.starts)))
    off_on = graph.constant(np.array([0.0, 1.0], np.float32))
    hot = [
        graph.op("OneHot", graph.slice(entries, i, i + 1), graph.constant([n]), off_on)
        for i, n in enumerate(part.choices)
    ]
    flat = [graph.reshape(one, (n,)) for one, n in zip(hot, part.choices, strict=True)]
    return graph.op("Concat", *flat, axis=1)


def _actions(graph: Graph, policy: GreedyPolicy, arrays: Weights, outputs: str) -> str:
    """`[N, numbers of an action]`."""
    if policy.action.head == "argmax":
        return _argmax(graph, policy, outputs)
    if policy.action.head == "clip":
        outputs = graph.slice(outputs, 0, policy.action.size)
        return _clipped(graph, outputs, arrays[LOW], arrays[HIGH]) if policy.action.bounded else outputs
    return _scaled(graph, policy, arrays, outputs)


def _output(graph: Graph, policy: GreedyPolicy, found: str) -> None:
    action = policy.action
    cast = graph.reshape(graph.cast(found, action.dtype), action.shape)
    graph.output("action", cast, action.dtype, action.shape, first=True)
    if PREVIOUS in policy.state:
        numbers = _one_hot(graph, action, found) if action.choices else found
        one = graph.op("Pad", numbers, graph.constant([0, 0, 0, 1]), graph.constant(np.float32(1.0)))
        graph.output(NEXT_STATE + PREVIOUS, one, "float32", (policy.state[PREVIOUS],))


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
        graph.op("ArgMax", graph.slice(outputs, begin, end), axis=1, keepdims=1)
        for begin, end in zip(begins, ends, strict=True)
    ]
    return graph.op("Add", graph.op("Concat", *entries, axis=1), graph.constant(list(action.starts)))


def _scaled(graph: Graph, policy: GreedyPolicy, arrays: Weights, outputs: str) -> str:
    """Outputs scaled from [-1, 1] to the bounds."""
    outputs = graph.slice(outputs, 0, policy.action.size)
    one = np.float32(1.0)
    fraction = graph.op("Tanh", outputs) if policy.action.head == "tanh" else _clipped(graph, outputs, -one, one)
    half = (arrays[HIGH] - arrays[LOW]) * np.float32(0.5)
    above = graph.op("Mul", graph.op("Add", fraction, graph.constant(one)), graph.constant(half))
    return graph.op("Add", above, graph.constant(arrays[LOW]))


def _clipped(graph: Graph, value: str, low: Array | np.float32, high: Array | np.float32) -> str:
    return graph.op("Min", graph.op("Max", value, graph.constant(np.array(low))), graph.constant(np.array(high)))
