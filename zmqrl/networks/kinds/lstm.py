"""Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000), as torch.nn.LSTMCell."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.kinds.gated import GatedLayerKind, NumpyGated, sigmoid
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class NumpyLstm(NumpyGated):
    """A step of `Lstm`."""

    gates, states = 4, 2

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        super().__init__(name, inputs, outputs, rows)
        self._first_two = self._from_input[:, : 2 * outputs]
        self._by_gate = tuple(self._from_input[:, i * outputs : (i + 1) * outputs] for i in range(4))

    def step(self, x: Array, state: Array) -> Array:
        out, (enter, forget, new, leave) = self._out, self._by_gate
        h, c = state[:, : self._outputs], state[:, self._outputs :]
        np.copyto(out, h)
        gates, theirs = self._sums(x, out)
        np.add(gates, theirs, gates)
        sigmoid(self._first_two)
        sigmoid(leave)
        np.tanh(new, new)
        np.multiply(c, forget, c)
        np.multiply(enter, new, enter)
        np.add(c, enter, c)
        np.tanh(c, out)
        np.multiply(out, leave, out)
        np.copyto(h, out)
        return out


class Lstm(GatedLayerKind):
    """Gates i, f, g, o, in this order, are W_i. x + b_i. + W_h. h + b_h., each with its nonlinearity.

    c' = sigmoid(f) c + sigmoid(i) tanh(g), and the output is h' = sigmoid(o) tanh(c'). The state is h and then c,
    `[B, 2 outputs]`.
    """

    acting = NumpyLstm

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step; as for `gru`, of operations that can be recorded on a GPU too."""
        h, c = state.chunk(2, 1)
        by_input, by_state = self.sums(spec, tensors, x, h)
        enter, forget, new, leave = (by_input + by_state).chunk(4, 1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        return h, torch.cat((h, c), 1)
