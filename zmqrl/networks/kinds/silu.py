"""x times the logistic function (Elfwing et al. 2018), also called swish."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, functional
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array

HALF, ONE = np.float32(0.5), np.float32(1.0)


class Silu(LayerKind):
    """x / (1 + exp(-x))."""

    is_activation = True

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        del spec, rows
        return _NumpySilu()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del spec, tensors
        return functional.silu(x)


class _NumpySilu(NumpyLayer):
    """x / 2 * (1 + tanh(x / 2)), which does not overflow; in place, with one buffer of the size of x."""

    def __init__(self) -> None:
        self._inner: Array = np.zeros(0, np.float32)

    def forward(self, x: Array) -> Array:
        if self._inner.shape != x.shape:
            self._inner = np.empty_like(x)
        inner = self._inner
        np.multiply(x, HALF, x)
        np.tanh(x, inner)
        np.add(inner, ONE, inner)
        np.multiply(x, inner, x)
        return x
