"""A graph of ONNX operations that grows node by node. The only modules that import onnx are those of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from zmqrl.types import Array

OPSET, IR_VERSION = 18, 10
BATCH = "N"
"""Name of the leading axis of every input and output."""


class Graph:
    """Values are named by number; inputs, outputs and initializers are those of the model."""

    explores = False
    """Whether noisy layers have their noise, as an input."""
    previous = ""
    """The value that a layer `concat` appends."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        """An input of the model, `[N, *shape]`."""
        self._inputs.append(helper.make_tensor_value_info(name, _element(dtype), [BATCH, *shape]))
        return name

    def output(self, name: str, value: str, dtype: str, shape: tuple[int | str, ...], first: bool = False) -> None:
        """An output of the model, `[N, *shape]`: a value. It is the last, or the `first`. A size may be a name."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        at = 0 if first else len(self._outputs)
        self._outputs.insert(at, helper.make_tensor_value_info(name, _element(dtype), [BATCH, *shape]))

    def constant(self, array: Array | np.float32 | list[int], name: str = "") -> str:
        """An array as a value."""
        name = name or f"c{len(self._initializers)}"
        values = np.array(array, np.int64) if isinstance(array, list) else np.array(array, order="C")
        self._initializers.append(numpy_helper.from_array(values, name))
        return name

    def parameter(self, name: str, array: Array) -> str:
        """An array that is trained, as a value."""
        return self.constant(array, name)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The first output of an operation."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """All outputs of an operation."""
        names = [f"v{len(self._nodes)}.{k}" for k in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def cast(self, value: str, dtype: str) -> str:
        """A value of another dtype."""
        return self.op("Cast", value, to=_element(dtype))

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        """`[N, *shape]`."""
        return self.op("Reshape", value, self.constant([-1, *shape]))

    def slice(self, value: str, begin: int, end: int) -> str:
        """Columns of `[N, columns]`."""
        return self.op("Slice", value, self.constant([begin]), self.constant([end]), self.constant([1]))

    def inline(self, graph: onnx.GraphProto, values: list[str]) -> list[str]:
        """The outputs of another graph for these inputs; its other names differ from those here."""
        names = {one.name: value for one, value in zip(graph.input, values, strict=True)}
        _rename(graph, names)
        self._nodes += graph.node
        self._initializers += graph.initializer
        return [names.get(one.name, one.name) for one in graph.output]

    def model(self, producer_version: str, description: str) -> onnx.ModelProto:
        """The checked model."""
        graph = helper.make_graph(self._nodes, "policy", self._inputs, self._outputs, self._initializers)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="zmqrl",
            producer_version=producer_version,
            doc_string=description,
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give inputs of operations other names, also in the bodies of conditions and loops."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            _rename(attribute.g, names)


def _element(dtype: str) -> TensorProto.DataType:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
