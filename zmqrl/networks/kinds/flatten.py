"""All but the batch dimension become one."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class Flatten(LayerKind):
    """Without arrays."""

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyFlatten()

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x.flatten(1)


class _NumpyFlatten(NumpyLayer):
    """The rows of numpy layers are flat already."""

    def forward(self, x: Array) -> Array:
        return x
