"""The expected value of each action's distribution over atoms (Bellemare et al. 2017, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class Expectation(LayerKind):
    """Expected values `[B, outputs]` of logits of `inputs / outputs` atoms of each action, one action after the other.

    Options: the atoms have equal distances from `low` (-10) to `high` (10).
    """

    defaults = MappingProxyType({"low": -10.0, "high": 10.0})

    def constants(self, spec: LayerSpec) -> Array:
        """The atoms, float32."""
        low, high = self.option(spec, "low"), self.option(spec, "high")
        return np.linspace(low, high, spec.inputs // spec.outputs, dtype=np.float32)

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyExpectation(self.constants(spec), spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        atoms = torch.from_numpy(self.constants(spec)).to(x)
        return x.reshape(x.shape[0], spec.outputs, -1).softmax(2) @ atoms


class _NumpyExpectation(NumpyLayer):
    def __init__(self, atoms: Array, actions: int, rows: int) -> None:
        self._atoms, self._shape = atoms, (rows, actions, len(atoms))
        self._sum, self._out = (np.zeros((rows, actions), np.float32) for _ in range(2))

    def forward(self, x: Array) -> Array:
        p, total, out = x.reshape(self._shape), self._sum, self._out
        np.maximum.reduce(p, axis=2, out=total)
        np.subtract(p, total[:, :, None], p)
        np.exp(p, p)
        np.add.reduce(p, axis=2, out=total)
        np.dot(p, self._atoms, out)
        np.divide(out, total, out)
        return out
