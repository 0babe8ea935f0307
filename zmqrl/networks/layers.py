"""The layers of `LayerSpec` on torch tensors, forward and backward.

The backward pass is written out: these networks are so small that autograd's bookkeeping would cost more than their
arithmetic. Each layer writes its gradients, it never adds to them, so nothing has to be zeroed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zmqrl.networks.spec import LayerSpec

Tensors = Mapping[str, Tensor]


class Layer(ABC):
    """One layer bound to its tensors and their gradients."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The output for a batch `x [B, ...]`."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        """Write the gradients of the layer's tensors, given input, output and the loss's gradient by `y`."""

    @abstractmethod
    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        """The loss's gradient by `x`."""


class Linear(Layer):
    """x W^T + b."""

    def __init__(self, name: str, tensors: Tensors, grads: Tensors) -> None:
        self._weight, self._bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        self._transposed = self._weight.t()
        self._weight_grad, self._bias_grad = grads[f"{name}.weight"], grads[f"{name}.bias"]

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self._bias, x, self._transposed)

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        torch.mm(grad.t(), x, out=self._weight_grad)
        torch.sum(grad, 0, out=self._bias_grad)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return torch.mm(grad, self._weight)


class Dueling(Layer):
    """value + advantage - mean(advantage), Wang et al. 2016, equation 9."""

    def __init__(self, name: str, tensors: Tensors, grads: Tensors) -> None:
        self._value = Linear(f"{name}.value", tensors, grads)
        self._advantage = Linear(f"{name}.advantage", tensors, grads)

    def forward(self, x: Tensor) -> Tensor:
        advantage = self._advantage.forward(x)
        return self._value.forward(x) + advantage - advantage.mean(1, keepdim=True)

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        self._value.backward(x, y, grad.sum(1, keepdim=True))
        self._advantage.backward(x, y, grad - grad.mean(1, keepdim=True))

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        by_value = self._value.input_grad(x, y, grad.sum(1, keepdim=True))
        return by_value + self._advantage.input_grad(x, y, grad - grad.mean(1, keepdim=True))


class Conv(Layer):
    """A square convolution without padding."""

    def __init__(self, layer: LayerSpec, tensors: Tensors, grads: Tensors) -> None:
        self._weight, self._bias = tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"]
        self._weight_grad, self._bias_grad = grads[f"{layer.name}.weight"], grads[f"{layer.name}.bias"]
        self._stride = [layer.stride, layer.stride]

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self._weight, self._bias, self._stride)

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        _, weight_grad, bias_grad = self._gradients(x, grad, [False, True, True])
        self._weight_grad.copy_(weight_grad)
        self._bias_grad.copy_(bias_grad)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return self._gradients(x, grad, [True, False, False])[0]

    def _gradients(self, x: Tensor, grad: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [self._bias.shape[0]]
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            grad, x, self._weight, sizes, self._stride, [0, 0], [1, 1], False, [0, 0], 1, wanted
        )
        return result


class _Free(Layer):
    """A layer without tensors."""

    def backward(self, x: Tensor, y: Tensor, grad: Tensor) -> None:
        del x, y, grad


class Tanh(_Free):
    """Elementwise tanh."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return result


class Relu(_Free):
    """Elementwise max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward(grad, y, 0)
        return result


class Flatten(_Free):
    """All but the batch dimension become one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1)

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return grad.reshape(x.shape)


class Scale(_Free):
    """Division by a constant, 255 for pixels."""

    def __init__(self, divisor: float) -> None:
        self._divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return x / self._divisor

    def input_grad(self, x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
        return grad / self._divisor


def bind(layer: LayerSpec, tensors: Tensors, grads: Tensors) -> Layer:
    """The layer of a spec, on the tensors of its name."""
    if layer.kind == "linear":
        return Linear(layer.name, tensors, grads)
    if layer.kind == "dueling":
        return Dueling(layer.name, tensors, grads)
    if layer.kind == "conv":
        return Conv(layer, tensors, grads)
    if layer.kind == "scale":
        return Scale(float(layer.inputs))
    free: dict[str, Callable[[], Layer]] = {"tanh": Tanh, "relu": Relu, "flatten": Flatten}
    return free[layer.kind]()
