"""Batch renormalisation (Ioffe 2017, arXiv 1702.03275) as a layer of zmqrl, for `crossq.py`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from zmqrl.loading import Tensor, torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer, is_training
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

FIRST = {"scale": 1.0, "shift": 0.0, "mean": 0.0, "deviation": 1.0, "steps": 0.0}
"""Arrays `[inputs]`, but `steps [1]`, and their first values. The last three are buffers."""


class BatchRenorm(LayerKind):
    """In training by the statistics of the batch, else by running ones.

    After `warmup` batches the result of training is corrected to what the running statistics give, within `r_max` and
    `d_max`, without a gradient. Until then it is a batch normalisation.
    """

    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"momentum": 0.01, "epsilon": 1e-3, "warmup": 100_000.0, "r_max": 3.0, "d_max": 5.0}
    )

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.{part}": (1 if part == "steps" else spec.inputs,) for part in FIRST}

    def buffers(self, spec: LayerSpec) -> frozenset[str]:
        return frozenset(f"{spec.name}.{part}" for part in ("mean", "deviation", "steps"))

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        shapes = self.shapes(spec)
        return {(n := f"{spec.name}.{part}"): np.full(shapes[n], value, np.float32) for part, value in FIRST.items()}

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return NumpyBatchRenorm(spec)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        scale, shift, mean, deviation, steps = (tensors[f"{spec.name}.{part}"] for part in FIRST)
        if not is_training():
            return (x - mean) / deviation * scale + shift
        momentum, r_max, d_max = (self.option(spec, name) for name in ("momentum", "r_max", "d_max"))
        of_batch = (x.var(0, unbiased=False) + self.option(spec, "epsilon")).sqrt()
        with torch.no_grad():
            is_late, centre = steps >= self.option(spec, "warmup"), x.mean(0)
            r = torch.where(is_late, (of_batch / deviation).clamp(1.0 / r_max, r_max), 1.0)
            d = torch.where(is_late, ((centre - mean) / deviation).clamp(-d_max, d_max), 0.0)
            mean.lerp_(centre, momentum)
            deviation.lerp_(of_batch, momentum)
            steps.add_(1.0)
        return ((x - x.mean(0)) / of_batch * r + d) * scale + shift


class NumpyBatchRenorm(NumpyLayer):
    """One multiplication and one addition by the running statistics."""

    def __init__(self, spec: LayerSpec) -> None:
        self._name = spec.name
        self._factor, self._offset = np.ones(spec.inputs, np.float32), np.zeros(spec.inputs, np.float32)

    def load(self, weights: Weights) -> None:
        scale, shift, mean, deviation, _ = (weights[f"{self._name}.{part}"] for part in FIRST)
        np.divide(scale, deviation, self._factor)
        np.subtract(shift, mean * self._factor, self._offset)

    def forward(self, x: Array) -> Array:
        np.multiply(x, self._factor, x)
        np.add(x, self._offset, x)
        return x
