"""A gated recurrent unit (Cho et al. 2014), in the convention of torch.nn.GRUCell: gates in the order r, z, n."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.loading import Tensor, torch
from zmqrl.networks.kinds.base import LayerKind, RecurrentLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

HALF = np.float32(0.5)
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Gru(LayerKind):
    """Arrays: `weight_ih [3 outputs, inputs]`, `weight_hh [3 outputs, outputs]`, `bias_ih` and `bias_hh [3 outputs]`.

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise, n = tanh(W_in x + b_in + r (W_hn h + b_hn)), and the state
    and output h' = (1 - z) n + z h. The state has the name of the layer.
    """

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        gates = 3 * spec.outputs
        sizes = ((gates, spec.inputs), (gates, spec.outputs), (gates,), (gates,))
        return {f"{spec.name}.{part}": size for part, size in zip(PARTS, sizes, strict=True)}

    def fan_in(self, spec: LayerSpec) -> int:
        return spec.outputs

    def state_size(self, spec: LayerSpec) -> int:
        return spec.outputs

    def numpy(self, spec: LayerSpec, rows: int) -> RecurrentLayer:
        return NumpyGru(spec.name, spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.step(spec, tensors, x, x.new_zeros(x.shape[0], spec.outputs))[0]

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The operations of `torch.gru_cell` on the CPU: that of a GPU is one kernel, which cannot be recorded."""
        weight_ih, weight_hh, bias_ih, bias_hh = (tensors[f"{spec.name}.{part}"] for part in PARTS)
        linear = torch.nn.functional.linear
        reset_x, update_x, new_x = linear(x, weight_ih, bias_ih).chunk(3, 1)
        reset_h, update_h, new_h = linear(state, weight_hh, bias_hh).chunk(3, 1)
        new = (new_x + new_h * (reset_h + reset_x).sigmoid()).tanh()
        after = (state - new) * (update_h + update_x).sigmoid() + new
        return after, after


class NumpyGru(RecurrentLayer):
    """Weights are kept transposed and C-contiguous."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self.name, self._outputs = name, outputs
        self._by_input = np.zeros((inputs, 3 * outputs), np.float32)
        self._by_state = np.zeros((outputs, 3 * outputs), np.float32)
        self._input_bias = np.zeros(3 * outputs, np.float32)
        self._state_bias = np.zeros(3 * outputs, np.float32)
        self._from_input = np.zeros((rows, 3 * outputs), np.float32)
        self._from_state = np.zeros((rows, 3 * outputs), np.float32)
        self._out, self.zero = np.zeros((rows, outputs), np.float32), np.zeros((rows, outputs), np.float32)

    def load(self, weights: Weights) -> None:
        np.copyto(self._by_input, weights[f"{self.name}.weight_ih"].T)
        np.copyto(self._by_state, weights[f"{self.name}.weight_hh"].T)
        np.copyto(self._input_bias, weights[f"{self.name}.bias_ih"])
        np.copyto(self._state_bias, weights[f"{self.name}.bias_hh"])

    def step(self, x: Array, state: Array) -> Array:
        size, ours, theirs = self._outputs, self._from_input, self._from_state
        np.dot(x, self._by_input, ours)
        np.add(ours, self._input_bias, ours)
        np.dot(state, self._by_state, theirs)
        np.add(theirs, self._state_bias, theirs)
        gates = ours[:, : 2 * size]
        np.add(gates, theirs[:, : 2 * size], gates)
        np.multiply(gates, HALF, gates)  # sigmoid(a) = (1 + tanh(a / 2)) / 2: no overflow, and numpy's tanh is fast
        np.tanh(gates, gates)
        np.add(gates, np.float32(1.0), gates)
        np.multiply(gates, HALF, gates)
        reset, update, new = gates[:, :size], gates[:, size:], ours[:, 2 * size :]
        np.multiply(reset, theirs[:, 2 * size :], reset)
        np.add(new, reset, new)
        np.tanh(new, new)
        np.subtract(state, new, state)
        np.multiply(state, update, state)
        np.add(state, new, state)  # n + z (h - n)
        np.copyto(self._out, state)  # the next layer may work in place
        return self._out
