"""A square convolution without padding."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, functional
from zmqrl.networks.kinds.base import LayerKind
from zmqrl.networks.spec import LayerSpec


class Conv(LayerKind):
    """Arrays: `weight [outputs, inputs, kernel, kernel]`, `bias [outputs]`; workers run it with torch."""

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        weight = (spec.outputs, spec.inputs, spec.kernel, spec.kernel)
        return {f"{spec.name}.weight": weight, f"{spec.name}.bias": (spec.outputs,)}

    def fan_in(self, spec: LayerSpec) -> int:
        return spec.inputs * spec.kernel**2

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional.conv2d(x, tensors[f"{spec.name}.weight"], tensors[f"{spec.name}.bias"], spec.stride)
