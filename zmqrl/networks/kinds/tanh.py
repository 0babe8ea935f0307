"""Elementwise tanh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from zmqrl.loading import Tensor, lazy
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array

if TYPE_CHECKING:
    from zmqrl.ops import tanh as kernel
else:
    kernel = lazy("zmqrl.ops.tanh")


class Tanh(LayerKind):
    """On a CPU numpy's tanh in both forward passes: workers and learner have the same bits."""

    is_activation = True

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        del spec, rows
        return _NumpyTanh()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del spec, tensors
        return kernel.tanh(x)


class _NumpyTanh(NumpyLayer):
    """In place."""

    def forward(self, x: Array) -> Array:
        np.tanh(x, x)
        return x
