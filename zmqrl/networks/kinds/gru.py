"""A gated recurrent unit (Cho et al. 2014), in the convention of torch.nn.GRUCell: gates in the order r, z, n."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, np
from zmqrl.networks.kinds.gated import GatedLayerKind, NumpyGated, sigmoid
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array


class NumpyGru(NumpyGated):
    """A step of `Gru`."""

    gates = 3

    def step(self, x: Array, state: Array) -> Array:
        size = self._outputs
        ours, theirs = self._sums(x, state)
        gates = ours[:, : 2 * size]
        np.add(gates, theirs[:, : 2 * size], gates)
        sigmoid(gates)
        reset, update, new = gates[:, :size], gates[:, size:], ours[:, 2 * size :]
        np.multiply(reset, theirs[:, 2 * size :], reset)
        np.add(new, reset, new)
        np.tanh(new, new)
        np.subtract(state, new, state)
        np.multiply(state, update, state)
        np.add(state, new, state)  # n + z (h - n)
        np.copyto(self._out, state)  # the next layer may work in place
        return self._out


class Gru(GatedLayerKind):
    """r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise, n = tanh(W_in x + b_in + r (W_hn h + b_hn)).

    The state and output is h' = (1 - z) n + z h.
    """

    acting = NumpyGru

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The operations of `torch.gru_cell` on the CPU: that of a GPU is one kernel, which cannot be recorded."""
        by_input, by_state = self.sums(spec, tensors, x, state)
        reset_x, update_x, new_x = by_input.chunk(3, 1)
        reset_h, update_h, new_h = by_state.chunk(3, 1)
        new = (new_x + new_h * (reset_h + reset_x).sigmoid()).tanh()
        after = (state - new) * (update_h + update_x).sigmoid() + new
        return after, after
