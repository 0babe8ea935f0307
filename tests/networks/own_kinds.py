"""Layer kinds of a user's, for the tests: imported by their dotted path, without torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Fractions(LayerKind):
    """x (1 + cos(pi w n)) for the mean over noise n in training, as the quantile fractions of IQN; 0.5 in acting."""

    noise_in_acting = False

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.weight": (spec.outputs,)}

    def noise_size(self, spec: LayerSpec) -> int:
        return 4

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyFractions(spec)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        noise = tensors.get(f"{spec.name}.noise", x.new_full((x.shape[0], 1), 0.5))
        inner = np.pi * tensors[f"{spec.name}.weight"] * noise.unsqueeze(2)
        return x * (1.0 + torch.cos(inner)).mean(1)


class _NumpyFractions(NumpyLayer):
    def __init__(self, spec: LayerSpec) -> None:
        self._name, self._factor = spec.name, np.zeros(spec.outputs, np.float32)

    def load(self, weights: Weights) -> None:
        self._factor = 1.0 + np.cos(np.float32(0.5 * np.pi) * weights[f"{self._name}.weight"])

    def forward(self, x: Array) -> Array:
        return np.multiply(x, self._factor, x)
