"""x times the logistic function (Elfwing et al. 2018), also called swish."""

from __future__ import annotations

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import ElementwiseLayerKind
from zmqrl.types import Array

HALF, ONE = np.float32(0.5), np.float32(1.0)


class Silu(ElementwiseLayerKind):
    """x / (1 + exp(-x)), on workers x / 2 * (1 + tanh(x / 2)), which does not overflow."""

    def in_place(self, x: Array, inner: Array) -> None:
        np.multiply(x, HALF, x)
        np.tanh(x, inner)
        np.add(inner, ONE, inner)
        np.multiply(x, inner, x)

    def of_tensor(self, x: Tensor) -> Tensor:
        return functional.silu(x)
