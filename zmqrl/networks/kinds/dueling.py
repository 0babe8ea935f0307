"""value + advantage - mean(advantage), Wang et al. 2016, equation 9."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, functional
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.kinds.linear import NumpyLinear
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Dueling(LayerKind):
    """Arrays: `value.weight [1, inputs]`, `value.bias`, `advantage.weight [outputs, inputs]`, `advantage.bias`."""

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        value, advantage = f"{spec.name}.value", f"{spec.name}.advantage"
        return {
            f"{value}.weight": (1, spec.inputs),
            f"{value}.bias": (1,),
            f"{advantage}.weight": (spec.outputs, spec.inputs),
            f"{advantage}.bias": (spec.outputs,),
        }

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyDueling(spec.name, spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        value, advantage = (
            functional.linear(x, tensors[f"{spec.name}.{part}.weight"], tensors[f"{spec.name}.{part}.bias"])
            for part in ("value", "advantage")
        )
        return value + advantage - advantage.mean(1, keepdim=True)


class _NumpyDueling(NumpyLayer):
    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self._value = NumpyLinear(f"{name}.value", inputs, 1, rows)
        self._advantage = NumpyLinear(f"{name}.advantage", inputs, outputs, rows)
        self._share = np.float32(1.0 / outputs)
        self._mean = np.zeros((rows, 1), np.float32)

    def load(self, weights: Weights) -> None:
        self._value.load(weights)
        self._advantage.load(weights)

    def forward(self, x: Array) -> Array:
        advantage, mean = self._advantage.forward(x), self._mean
        np.add.reduce(advantage, axis=1, keepdims=True, out=mean)
        np.multiply(mean, self._share, mean)
        offset = self._value.forward(x)
        np.subtract(offset, mean, offset)
        np.add(advantage, offset, advantage)
        return advantage
