"""x times the Gaussian CDF, in the approximation by tanh (Hendrycks & Gimpel 2016): numpy has no error function."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, functional
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array

CUBIC = np.float32(0.044715)
SCALE = np.float32(math.sqrt(2.0 / math.pi))
HALF, ONE = np.float32(0.5), np.float32(1.0)


class Gelu(LayerKind):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""

    is_activation = True

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        del spec, rows
        return _NumpyGelu()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del spec, tensors
        return functional.gelu(x, approximate="tanh")


class _NumpyGelu(NumpyLayer):
    """In place, with one buffer of the size of x."""

    def __init__(self) -> None:
        self._inner: Array = np.zeros(0, np.float32)

    def forward(self, x: Array) -> Array:
        if self._inner.shape != x.shape:
            self._inner = np.empty_like(x)
        inner = self._inner
        np.multiply(x, x, inner)
        np.multiply(inner, CUBIC, inner)
        np.add(inner, ONE, inner)
        np.multiply(inner, x, inner)
        np.multiply(inner, SCALE, inner)
        np.tanh(inner, inner)
        np.add(inner, ONE, inner)
        np.multiply(x, HALF, x)
        np.multiply(x, inner, x)
        return x
