"""x W^T + b."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Linear(LayerKind):
    """Arrays: `weight [outputs, inputs]`, `bias [outputs]`."""

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.weight": (spec.outputs, spec.inputs), f"{spec.name}.bias": (spec.outputs,)}

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return NumpyLinear(spec.name, spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional.linear(x, tensors[f"{spec.name}.weight"], tensors[f"{spec.name}.bias"])


class NumpyLinear(NumpyLayer):
    """The weight is kept transposed and C-contiguous."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self._name = name
        self._weight = np.zeros((inputs, outputs), np.float32)
        self._bias = np.zeros(outputs, np.float32)
        self._out = np.zeros((rows, outputs), np.float32)

    def load(self, weights: Weights) -> None:
        np.copyto(self._weight, weights[f"{self._name}.weight"].T)
        np.copyto(self._bias, weights[f"{self._name}.bias"])

    def forward(self, x: Array) -> Array:
        out = self._out
        np.dot(x, self._weight, out)
        np.add(out, self._bias, out)
        return out
