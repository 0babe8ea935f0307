"""The features of a row, followed by those of a second input: an action for critics, the step before in acting."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, np
from zmqrl.networks.kinds.base import LayerKind, RecurrentLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import PREVIOUS, Array


class Concat(LayerKind):
    """No arrays. `inputs` counts the features of the first input, `outputs` those of both.

    In acting the second input is the state `previous` (`ActingSpec.previous`), which the layer leaves as it is.
    """

    takes_input = True

    def numpy(self, spec: LayerSpec, rows: int) -> RecurrentLayer:
        return NumpyConcat(spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        raise TypeError("a layer of kind 'concat' needs a second input, which zmqrl.networks.forward.forward takes")


class NumpyConcat(RecurrentLayer):
    """Copies both inputs side by side."""

    name = PREVIOUS

    def __init__(self, inputs: int, outputs: int, rows: int) -> None:
        self._out, self._inputs = np.zeros((rows, outputs), np.float32), inputs
        self.zero = np.zeros((rows, outputs - inputs), np.float32)

    def step(self, x: Array, state: Array) -> Array:
        np.copyto(self._out[:, : self._inputs], x)
        np.copyto(self._out[:, self._inputs :], state)
        return self._out
