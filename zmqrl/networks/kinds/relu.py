"""Elementwise max(x, 0)."""

from __future__ import annotations

from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.kinds.base import ElementwiseLayerKind
from zmqrl.types import Array


class Relu(ElementwiseLayerKind):
    """Rectified linear unit."""

    def in_place(self, x: Array, inner: Array) -> None:
        np.maximum(x, np.float32(0.0), out=x)

    def of_tensor(self, x: Tensor) -> Tensor:
        return torch.relu(x)
