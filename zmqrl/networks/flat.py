"""All tensors of a network as views into one flat tensor, so that an optimiser step is a handful of operations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

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
