"""Division by a constant."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, np
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class Scale(LayerKind):
    """Without arrays; the divisor is `inputs`, 255 for pixels."""

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyScale(spec.inputs)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x / spec.inputs


class _NumpyScale(NumpyLayer):
    def __init__(self, divisor: int) -> None:
        self._divisor = np.float32(divisor)

    def forward(self, x: Array) -> Array:
        np.divide(x, self._divisor, x)
        return x
