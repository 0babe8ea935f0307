"""The layers of an acting spec as an ONNX graph without the values of its arrays: one graph for all versions."""

from __future__ import annotations

import base64
from importlib import metadata

import numpy as np
import onnx
from onnx import TensorProto, helper

from zmqrl.acting.spec import NEXT_STATE, OUTPUTS, STATE, WIDTH, ActingGraph, ActingSpec, X, previous_size
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.export.onnx_graph import Graph
from zmqrl.export.onnx_layers import forward
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.types import PREVIOUS, Array, Weights

LAID_OUT = "Conv"
"""The operation whose arrays are constants of a session."""
ELSEWHERE = "weights"
"""Name of a file that does not exist, in which the model has its constants: their values are given to a session."""

MOST_BYTES = 4_000_000
"""Largest size of a model: it is part of the plan, which every process receives."""


def with_graph(spec: ActingSpec) -> ActingSpec:
    """`spec` with the runtime onnx.

    Raises:
        ConfigError: A layer of the user's cannot be exported, or has large constants.
    """
    described = spec.input or network_input(spec.observation)
    arrays = {
        name: np.zeros(shape, np.float32)
        for layer in spec.layers
        for name, shape in layer_kind(layer.kind).shapes(layer).items()
    }
    graph = _GraphOfArrays()
    x = graph.reshape(graph.input(X, "float32", (described.size,)), described.shape)
    if spec.previous:
        size = (previous_size(spec.action),)
        graph.previous = graph.input(STATE + PREVIOUS, "float32", size)
        graph.output(NEXT_STATE + PREVIOUS, graph.previous, "float32", size)
    outputs = graph.op("Flatten", forward(graph, spec.layers, arrays, x), axis=1)
    graph.output(OUTPUTS, outputs, "float32", (WIDTH,))
    model = graph.model(metadata.version("zmqrl"), f"Layers of a policy with the head {spec.head}")
    constants = _make_constant(model.graph, arrays)
    content = model.SerializeToString()
    if len(content) > MOST_BYTES:
        raise ConfigError(
            f"the graph of the network has {len(content) / 1e6:.1f} MB without its weights; the limit is "
            f"{MOST_BYTES / 1e6:g} MB, because every process receives it",
            fix="register large constant tensors with register_buffer(..., persistent=True)",
        )
    return replace(spec, runtime="onnx", graph=ActingGraph(base64.b64encode(content).decode(), constants))


class _GraphOfArrays(Graph):
    explores = True

    def parameter(self, name: str, array: Array) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
        return name


def _make_constant(graph: onnx.GraphProto, arrays: Weights) -> tuple[str, ...]:
    """Turn inputs that are arrays of convolutions into initializers without values; their names."""
    of_convolutions = {name for node in graph.node if node.op_type == LAID_OUT for name in node.input[1:]}
    names = tuple(sorted(of_convolutions.intersection(arrays)))
    kept = [one for one in graph.input if one.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
    for name in names:
        array = arrays[name]
        tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=ELSEWHERE)
        tensor.external_data.add(key="length", value=str(array.nbytes))
    return names
