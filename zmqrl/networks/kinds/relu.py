"""Elementwise max(x, 0)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class Relu(LayerKind):
    """Without arrays."""

    is_activation = True

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        del spec, rows
        return _NumpyRelu()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del spec, tensors
        return torch.relu(x)


class _NumpyRelu(NumpyLayer):
    """In place."""

    def forward(self, x: Array) -> Array:
        np.maximum(x, np.float32(0.0), out=x)
        return x
