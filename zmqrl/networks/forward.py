"""Layers on torch tensors; autograd differentiates the result by the tensors and the input."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.loading import Tensor, torch
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import PREVIOUS


def forward(layers: tuple[LayerSpec, ...], tensors: Mapping[str, Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """The output `[B, ...]` of `layers` for `x [B, ...]`; `tensors` are theirs by name, among others.

    A layer `concat` appends the next of `more [B, ...]`. A recurrent layer makes one step from state zero.
    """
    rest = list(more)
    x = x if x.is_floating_point() else x.float()
    for layer in layers:
        x = _output(layer, tensors, x, rest)
    return x


def _output(layer: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, rest: list[Tensor]) -> Tensor:
    """The output `[B, ...]` of one layer; a layer `concat` takes the first of `rest`."""
    kind = layer_kind(layer.kind)
    if kind.takes_input:
        return torch.cat((x.flatten(1), rest.pop(0).flatten(1)), 1)
    return kind.torch(layer, tensors, x)


def step(layers: tuple[LayerSpec, ...], tensors: Mapping[str, Tensor], x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """One step of acting: as `forward`, and `state[name] [B, size]` of each recurrent layer is replaced by the next.

    A layer `concat` appends `state["previous"]`.
    """
    for layer in layers:
        kind = layer_kind(layer.kind)
        if kind.state_size(layer):
            x, state[layer.name] = kind.step(layer, tensors, x, state[layer.name])
        else:
            x = _output(layer, tensors, x, [state[PREVIOUS]] if kind.takes_input else [])
    return x


def unroll(
    layers: tuple[LayerSpec, ...],
    tensors: Mapping[str, Tensor],
    x: Tensor,
    state: Mapping[str, Tensor],
    reset: Tensor,
    *more: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sequences from stored state, for backpropagation through time.

    Args:
        layers: Of the network.
        tensors: By name.
        x: `[L, B, ...]`; with L = 0, as without a burn-in, the states stay what they are.
        state: By layer, `[B, size]`: before the first row.
        reset: `[L, B]` bool: an episode begins at the row, whose state is zero.
        more: `[L, B, ...]` each: a layer `concat` appends the next of them.

    Returns:
        The output `[L, B, ...]`, and the states after the last row.
    """
    x = x if x.is_floating_point() else x.float()
    length, batch = x.shape[:2]
    rest, after = [rows.flatten(0, 1) for rows in more], dict(state)
    for layer in layers:
        kind = layer_kind(layer.kind)
        if not (length and kind.state_size(layer)):  # zero rows of any layer: the shape of its output
            flat = _output(layer, tensors, x.flatten(0, 1), rest)
            x = flat.reshape(length, batch, *flat.shape[1:])
            continue
        held, outputs = after[layer.name], []
        keep = (~reset).to(held.dtype).unsqueeze(2)
        for t in range(length):
            output, held = kind.step(layer, tensors, x[t], held * keep[t])
            outputs.append(output)
        x, after[layer.name] = torch.stack(outputs), held
    return x, after
