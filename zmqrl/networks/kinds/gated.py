"""Recurrent layers with gates, in the convention of torch's cells: their arrays, and memory for a step in numpy."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import LayerKind, RecurrentLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

HALF = np.float32(0.5)
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class NumpyGated(RecurrentLayer):
    """Weights are kept transposed and C-contiguous."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    """Numbers of state for each output."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self.name, self._outputs = name, outputs
        gates = self.gates * outputs
        self._by_input = np.zeros((inputs, gates), np.float32)
        self._by_state = np.zeros((outputs, gates), np.float32)
        self._input_bias, self._state_bias = np.zeros(gates, np.float32), np.zeros(gates, np.float32)
        self._from_input, self._from_state = (np.zeros((rows, gates), np.float32) for _ in range(2))
        self._out = np.zeros((rows, outputs), np.float32)
        self.zero = np.zeros((rows, self.states * outputs), np.float32)

    def load(self, weights: Weights) -> None:
        np.copyto(self._by_input, weights[f"{self.name}.weight_ih"].T)
        np.copyto(self._by_state, weights[f"{self.name}.weight_hh"].T)
        np.copyto(self._input_bias, weights[f"{self.name}.bias_ih"])
        np.copyto(self._state_bias, weights[f"{self.name}.bias_hh"])

    def _sums(self, x: Array, h: Array) -> tuple[Array, Array]:
        """`x W_i^T + b_i` and `h W_h^T + b_h`, each `[rows, gates]`; `h` is C-contiguous."""
        ours, theirs = self._from_input, self._from_state
        np.dot(x, self._by_input, ours)
        np.add(ours, self._input_bias, ours)
        np.dot(h, self._by_state, theirs)
        np.add(theirs, self._state_bias, theirs)
        return ours, theirs


class GatedLayerKind(LayerKind, ABC):
    """Arrays: `weight_ih [G outputs, inputs]`, `weight_hh [G outputs, outputs]`, `bias_ih` and `bias_hh [G outputs]`.

    G is the number of gates. The state has the name of the layer.
    """

    acting: ClassVar[type[NumpyGated]]

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        gates = self.acting.gates * spec.outputs
        sizes = ((gates, spec.inputs), (gates, spec.outputs), (gates,), (gates,))
        return {f"{spec.name}.{part}": size for part, size in zip(PARTS, sizes, strict=True)}

    def fan_in(self, spec: LayerSpec) -> int:
        return spec.outputs

    def state_size(self, spec: LayerSpec) -> int:
        return self.acting.states * spec.outputs

    def numpy(self, spec: LayerSpec, rows: int) -> RecurrentLayer:
        return self.acting(spec.name, spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.step(spec, tensors, x, x.new_zeros(x.shape[0], self.state_size(spec)))[0]

    def sums(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """`W_i x + b_i` and `W_h h + b_h` of all gates, `[B, G outputs]` each."""
        weight_ih, weight_hh, bias_ih, bias_hh = (tensors[f"{spec.name}.{part}"] for part in PARTS)
        return functional.linear(x, weight_ih, bias_ih), functional.linear(h, weight_hh, bias_hh)


def sigmoid(x: Array) -> None:
    """Replace `x` by (1 + tanh(x / 2)) / 2: no overflow, and numpy's tanh is fast."""
    np.multiply(x, HALF, x)
    np.tanh(x, x)
    np.add(x, np.float32(1.0), x)
    np.multiply(x, HALF, x)
