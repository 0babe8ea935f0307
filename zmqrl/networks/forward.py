"""Layers on torch tensors; autograd differentiates the result by the tensors and the input."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec


def forward(layers: tuple[LayerSpec, ...], tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The output `[B, ...]` of `layers` for `x [B, ...]`; `tensors` are theirs by name, among others."""
    for layer in layers:
        x = layer_kind(layer.kind).torch(layer, tensors, x)
    return x
