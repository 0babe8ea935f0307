"""Layer normalisation (Ba et al. 2016) over all features of a row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Layernorm(LayerKind):
    """Arrays: `weight [inputs]` (first 1), `bias [inputs]` (first 0). `inputs` counts all features, also of an image.

    Option `epsilon`: added to the variance.
    """

    defaults = MappingProxyType({"epsilon": 1e-5})

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.weight": (spec.inputs,), f"{spec.name}.bias": (spec.inputs,)}

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        ones, zeros = np.ones(spec.inputs, np.float32), np.zeros(spec.inputs, np.float32)
        return {f"{spec.name}.weight": ones, f"{spec.name}.bias": zeros}

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyLayernorm(spec.name, spec.inputs, rows, self.option(spec, "epsilon"))

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        shape = x.shape[1:]
        weight, bias = tensors[f"{spec.name}.weight"].view(shape), tensors[f"{spec.name}.bias"].view(shape)
        return functional.layer_norm(x, shape, weight, bias, self.option(spec, "epsilon"))


class _NumpyLayernorm(NumpyLayer):
    def __init__(self, name: str, size: int, rows: int, epsilon: float) -> None:
        self._name = name
        self._share, self._epsilon = np.float32(1.0 / size), np.float32(epsilon)
        self._weight = np.ones(size, np.float32)
        self._bias = np.zeros(size, np.float32)
        self._moment = np.zeros((rows, 1), np.float32)
        self._square = np.zeros((rows, size), np.float32)

    def load(self, weights: Weights) -> None:
        np.copyto(self._weight, weights[f"{self._name}.weight"])
        np.copyto(self._bias, weights[f"{self._name}.bias"])

    def forward(self, x: Array) -> Array:
        moment, square = self._moment, self._square
        np.add.reduce(x, axis=1, keepdims=True, out=moment)
        np.multiply(moment, self._share, moment)
        np.subtract(x, moment, x)
        np.multiply(x, x, square)
        np.add.reduce(square, axis=1, keepdims=True, out=moment)
        np.multiply(moment, self._share, moment)
        np.add(moment, self._epsilon, moment)
        np.sqrt(moment, moment)
        np.divide(x, moment, x)
        np.multiply(x, self._weight, x)
        np.add(x, self._bias, x)
        return x
