"""Elementwise tanh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zmqrl.loading import Tensor, lazy, np
from zmqrl.networks.kinds.base import ElementwiseLayerKind
from zmqrl.types import Array

if TYPE_CHECKING:
    from zmqrl.ops import tanh as kernel
else:
    kernel = lazy("zmqrl.ops.tanh")


class Tanh(ElementwiseLayerKind):
    """On a CPU numpy's tanh in both forward passes: workers and learner have the same bits."""

    def in_place(self, x: Array, inner: Array) -> None:
        np.tanh(x, x)

    def of_tensor(self, x: Tensor) -> Tensor:
        return kernel.tanh(x)
