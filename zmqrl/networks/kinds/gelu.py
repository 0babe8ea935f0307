"""x times the Gaussian CDF, in the approximation by tanh (Hendrycks & Gimpel 2016): numpy has no error function."""

from __future__ import annotations

import math

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import ElementwiseLayerKind
from zmqrl.types import Array

CUBIC = np.float32(0.044715)
SCALE = np.float32(math.sqrt(2.0 / math.pi))
HALF, ONE = np.float32(0.5), np.float32(1.0)


class Gelu(ElementwiseLayerKind):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""

    def in_place(self, x: Array, inner: Array) -> None:
        np.multiply(x, x, inner)
        np.multiply(inner, CUBIC, inner)
        np.add(inner, ONE, inner)
        np.multiply(inner, x, inner)
        np.multiply(inner, SCALE, inner)
        np.tanh(inner, inner)
        np.add(inner, ONE, inner)
        np.multiply(x, HALF, x)
        np.multiply(x, inner, x)

    def of_tensor(self, x: Tensor) -> Tensor:
        return functional.gelu(x, approximate="tanh")
