"""A tower of layers on torch tensors, as a function of its tensors: autograd differentiates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zmqrl.acting.spec import LayerSpec
from zmqrl.loading import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional
else:
    torch = lazy("torch")
    functional = lazy("torch.nn.functional")


def forward(layers: tuple[LayerSpec, ...], tensors: Mapping[str, Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """The output `[B, outputs]` for `x [B, ...]`; a layer `concat` appends the next of `more [B, ...]`."""
    rest = list(more)
    x = x if x.is_floating_point() else x.float()
    for layer in layers:
        if layer.kind == "concat":
            x = torch.cat((x.flatten(1), rest.pop(0).flatten(1)), 1)
        else:
            x = _apply(layer, x, tensors)
    return x


def _apply(layer: LayerSpec, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    if layer.kind == "linear":
        return functional.linear(x, tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"])
    if layer.kind == "conv":
        return functional.conv2d(x, tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"], layer.stride)
    if layer.kind == "dueling":
        value, advantage = (
            functional.linear(x, tensors[f"{layer.name}.{part}.weight"], tensors[f"{layer.name}.{part}.bias"])
            for part in ("value", "advantage")
        )
        return value + advantage - advantage.mean(dim=1, keepdim=True)
    if layer.kind == "flatten":
        return x.flatten(1)
    if layer.kind == "scale":
        return x / layer.inputs
    return torch.tanh(x) if layer.kind == "tanh" else torch.relu(x)
