"""Recurrent layers in numpy, one step at a time, with buffers: no allocation per step."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array, Weights

HALF = np.float32(0.5)


class GruCell:
    """A gated recurrent unit (Cho et al. 2014) in the convention of torch.nn.GRUCell, gates in the order r, z, n.

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise, n = tanh(W_in x + b_in + r (W_hn h + b_hn)),
    h' = (1 - z) n + z h. The state is the caller's.
    """

    def __init__(self, inputs: int, outputs: int, rows: int) -> None:
        self._outputs = outputs
        self._by_input = np.zeros((inputs, 3 * outputs), np.float32)
        self._by_state = np.zeros((outputs, 3 * outputs), np.float32)
        self._input_bias = np.zeros(3 * outputs, np.float32)
        self._state_bias = np.zeros(3 * outputs, np.float32)
        self._from_input = np.zeros((rows, 3 * outputs), np.float32)
        self._from_state = np.zeros((rows, 3 * outputs), np.float32)

    def load(self, weights: Weights, name: str) -> None:
        """Copy the arrays of the layer `name`; weights are kept transposed and C-contiguous."""
        np.copyto(self._by_input, weights[f"{name}.weight_ih"].T)
        np.copyto(self._by_state, weights[f"{name}.weight_hh"].T)
        np.copyto(self._input_bias, weights[f"{name}.bias_ih"])
        np.copyto(self._state_bias, weights[f"{name}.bias_hh"])

    def step(self, x: Array, state: Array) -> None:
        """Replace `state [rows, outputs]` by the state after `x [rows, inputs]`."""
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
