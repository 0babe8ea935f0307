"""Flat parameters, and a tower of layers on views of them, with a backward pass that fills the flat gradient.

The forward passes are those of the kinds. The backward pass is written out: these networks are so small that autograd's
bookkeeping would cost more than their arithmetic. Each layer writes its gradients, it never adds to them, so nothing
has to be zeroed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zmqrl.errors import ConfigError
from zmqrl.networks.kinds.base import layer_kind, without_backward
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights

ALIGNMENT = 16
"""Entries: each tensor begins on a 64-byte line, whatever its predecessors are."""
Tensors = Mapping[str, Tensor]


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


class Backward(ABC):
    """One layer bound to its tensors and their gradients."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        """Write the gradients of the layer's tensors, given input, output and the loss's gradient by `y`."""

    @abstractmethod
    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        """The loss's gradient by `x`."""


class LinearBackward(Backward):
    """x W^T + b."""

    def __init__(self, name: str, tensors: Tensors, grads: Tensors) -> None:
        self._weight = tensors[f"{name}.weight"]
        self._weight_grad, self._bias_grad = grads[f"{name}.weight"], grads[f"{name}.bias"]

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        torch.mm(grad.t(), x, out=self._weight_grad)
        torch.sum(grad, 0, out=self._bias_grad)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return torch.mm(grad, self._weight)


class DuelingBackward(Backward):
    """value + advantage - mean(advantage)."""

    def __init__(self, name: str, tensors: Tensors, grads: Tensors) -> None:
        self._value = LinearBackward(f"{name}.value", tensors, grads)
        self._advantage = LinearBackward(f"{name}.advantage", tensors, grads)

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        self._value.backward(x, y, grad.sum(1, keepdim=True))
        self._advantage.backward(x, y, grad - grad.mean(1, keepdim=True))

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        by_value = self._value.input_grad(x, y, grad.sum(1, keepdim=True))
        return by_value + self._advantage.input_grad(x, y, grad - grad.mean(1, keepdim=True))


class _Free(Backward):
    """A layer without tensors."""

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        del x, y, grad


class TanhBackward(_Free):
    """grad * (1 - y^2)."""

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return result


class ReluBackward(_Free):
    """grad where y > 0."""

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward(grad, y, 0)
        return result


class FlattenBackward(_Free):
    """The shape of x."""

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return grad.reshape(x.shape)


class ScaleBackward(_Free):
    """Division by the constant."""

    def __init__(self, divisor: float) -> None:
        self._divisor = divisor

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return grad / self._divisor


BACKWARD: Mapping[str, Callable[[LayerSpec, Tensors, Tensors], Backward]] = {
    "linear": lambda layer, tensors, grads: LinearBackward(layer.name, tensors, grads),
    "dueling": lambda layer, tensors, grads: DuelingBackward(layer.name, tensors, grads),
    "scale": lambda layer, tensors, grads: ScaleBackward(float(layer.inputs)),
    "tanh": lambda layer, tensors, grads: TanhBackward(),
    "relu": lambda layer, tensors, grads: ReluBackward(),
    "flatten": lambda layer, tensors, grads: FlattenBackward(),
}


def bind(layers: tuple[LayerSpec, ...], tensors: Tensors, grads: Tensors) -> list[Backward]:
    """The backward passes of `layers` on the tensors of their names; `ConfigError` for kinds that have none."""
    for layer in layers:
        layer_kind(layer.kind)  # an unknown one has its own message
    if missing := without_backward(layers):
        raise ConfigError(
            f"layers of kind {', '.join(missing)} have no hand-written backward pass",
            fix="train them with autograd over zmqrl.networks.forward.forward",
        )
    return [BACKWARD[layer.kind](layer, tensors, grads) for layer in layers]
