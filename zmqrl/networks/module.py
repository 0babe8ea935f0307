"""Flat parameters, and a tower of layers on views of them, with a backward pass that fills the flat gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.layers import bind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

ALIGNMENT = 16
"""Entries: each tensor begins on a 64-byte line, whatever its predecessors are."""


class FlatParameters:
    """Named float32 tensors in one flat tensor, and their gradients in another.

    Made without initialising: `load` fills it. torch's global random state is never touched.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: str = "cpu") -> None:
        offsets, end = [], 0
        for shape in shapes.values():
            offsets.append(end)
            end += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT
        self.flat = torch.zeros(end, device=device)
        self.flat_grad = torch.zeros(end, device=device)
        places = list(zip(shapes.items(), offsets, strict=True))
        self.tensors = {name: _view(self.flat, offset, shape) for (name, shape), offset in places}
        self.grads = {name: _view(self.flat_grad, offset, shape) for (name, shape), offset in places}

    def load(self, weights: Weights) -> None:
        """Copy the named arrays in; KeyError names one that is missing."""
        for name, tensor in self.tensors.items():
            tensor.copy_(torch.tensor(weights[name]))

    def arrays(self) -> dict[str, Array]:
        """Copies of all tensors as C-contiguous numpy arrays."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.tensors.items()}


def _view(flat: torch.Tensor, offset: int, shape: tuple[int, ...]) -> torch.Tensor:
    return flat[offset : offset + math.prod(shape)].view(shape)


class Tower:
    """A stack of layers. `run` only evaluates; `forward` then `backward` trains, in pairs.

    `run` and `forward` are those of `zmqrl.networks.forward`, which autograd can differentiate too.
    """

    def __init__(self, layers: tuple[LayerSpec, ...], parameters: FlatParameters) -> None:
        """Raise `ConfigError` when a kind has no hand-written backward pass."""
        self._tensors = parameters.tensors
        self._backward = bind(layers, parameters.tensors, parameters.grads)
        self._forward = [(layer_kind(layer.kind).torch, layer) for layer in layers]
        # Below the lowest layer that has tensors no gradient is needed.
        self._lowest = next(i for i, layer in enumerate(layers) if layer.name)
        self._activations: list[Tensor] = []

    def run(self, x: Tensor) -> Tensor:
        """The output `[B, outputs]` for `x [B, ...]` float32."""
        for compute, layer in self._forward:
            x = compute(layer, self._tensors, x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output as `run` does, and keep what `backward` needs."""
        activations = [x]
        for compute, layer in self._forward:
            x = compute(layer, self._tensors, x)
            activations.append(x)
        self._activations = activations
        return x

    def backward(self, grad: Tensor) -> None:
        """Write the gradients of all the tower's tensors, given the loss's gradient by the output of `forward`."""
        activations = self._activations
        for i in range(len(self._backward) - 1, self._lowest - 1, -1):
            layer, x, y = self._backward[i], activations[i], activations[i + 1]
            layer.backward(x, y, grad)
            if i > self._lowest:
                grad = layer.input_grad(x, y, grad)
