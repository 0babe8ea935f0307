"""A tower of layers run on the views of `FlatParameters`, with a backward pass that fills the flat gradient."""

from __future__ import annotations

from torch import Tensor

from zmqrl.acting.spec import LayerSpec
from zmqrl.networks.flat import FlatParameters
from zmqrl.networks.layers import bind


class Tower:
    """A stack of layers. `run` only evaluates; `forward` then `backward` trains, in pairs."""

    def __init__(self, layers: tuple[LayerSpec, ...], parameters: FlatParameters) -> None:
        self._layers = [bind(layer, parameters.tensors, parameters.grads) for layer in layers]
        # Below the lowest layer that has tensors no gradient is needed.
        self._lowest = next(i for i, layer in enumerate(layers) if layer.name)
        self._activations: list[Tensor] = []

    def run(self, x: Tensor) -> Tensor:
        """The output `[B, outputs]` for `x [B, ...]` float32."""
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """As `run`, and keep what `backward` needs."""
        activations = [x]
        for layer in self._layers:
            x = layer.forward(x)
            activations.append(x)
        self._activations = activations
        return x

    def backward(self, grad: Tensor) -> None:
        """Write the gradients of all the tower's tensors, given the loss's gradient by the output of `forward`."""
        activations = self._activations
        for i in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer, x, y = self._layers[i], activations[i], activations[i + 1]
            layer.backward(x, y, grad)
            if i > self._lowest:
                grad = layer.input_grad(x, y, grad)
