"""Groups of parameters, each in one flat tensor with an Adam of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zmqrl.errors import ConfigError
from zmqrl.loading import Tensor, torch

ALIGNMENT = 16
"""Entries: each tensor begins on a 64-byte line."""
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Group:
    """Parameters that one optimiser steps together: Adam (Kingma & Ba 2015), AdamW with `weight_decay`."""

    name: str
    of: tuple[str, ...] = ()
    """Towers and free parameters of the network; default: the one called `name`."""
    max_grad_norm: float | None = None
    """Bound of the gradient's Euclidean norm over the group."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    weight_decay: float = 0.0
    """Apart from the gradient (Loshchilov & Hutter 2019)."""
    target: bool = False
    """Keep a target network of these parameters."""

    @property
    def members(self) -> tuple[str, ...]:
        """Towers and free parameters."""
        return self.of or (self.name,)


@dataclass(frozen=True)
class FlatLayout:
    """Where the tensors of a group are in its flat tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    offsets: Mapping[str, int]
    length: int

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> FlatLayout:
        """One after the other, each aligned."""
        offsets, end = {}, 0
        for name, shape in shapes.items():
            offsets[name] = end
            end += _aligned(math.prod(shape))
        return cls(shapes, offsets, end)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each tensor as a view of `flat [length]`."""
        return {
            name: flat[self.offsets[name] : self.offsets[name] + math.prod(shape)].view(shape)
            for name, shape in self.shapes.items()
        }

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """`tensors`, in the order of `shapes`, as one flat tensor; padding is zero."""
        parts: list[Tensor] = []
        for tensor in tensors:
            parts.append(tensor.reshape(-1))
            if padding := _aligned(tensor.numel()) - tensor.numel():
                parts.append(tensor.new_zeros(padding))
        return torch.cat(parts)


def _aligned(entries: int) -> int:
    return -(-entries // ALIGNMENT) * ALIGNMENT


def layouts(groups: Sequence[Group], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, FlatLayout]:
    """The layout of each group. ConfigError when a tensor of the network is in none or in several."""
    found: dict[str, FlatLayout] = {}
    owner: dict[str, str] = {}
    for group in groups:
        own = {name: shape for name, shape in shapes.items() if is_member(name, group.members)}
        for member in group.members:
            if not any(is_member(name, (member,)) for name in shapes):
                raise ConfigError(f"group {group.name!r}: the network has no tower or parameter {member!r}")
        for name in own:
            if name in owner:
                raise ConfigError(f"tensor {name!r} is in two groups: {owner[name]!r} and {group.name!r}")
            owner[name] = group.name
        found[group.name] = FlatLayout.of(own)
    if missing := [name for name in shapes if name not in owner]:
        raise ConfigError(f"no group has the tensors {missing}: nothing would train them")
    return found


def is_member(tensor: str, members: Sequence[str]) -> bool:
    """Whether a tensor of the network is of one of these towers, layers or parameters."""
    return any(tensor == member or tensor.startswith(f"{member}.") for member in members)


def adam_step(
    parameters: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, rate: Tensor, group: Group
) -> None:
    """One step of Adam, all in place. `steps []` and `rate []` are float64 tensors: a traced step repeats neither."""
    first, second = BETAS
    steps.add_(1.0)
    mean.lerp_(grad, 1.0 - first)
    square.mul_(second).addcmul_(grad, grad, value=1.0 - second)
    deviation = square.sqrt().div_((1.0 - torch.pow(second, steps)).sqrt()).add_(group.epsilon)
    if group.weight_decay:
        parameters.mul_(1.0 - rate * group.weight_decay)
    parameters.sub_((mean / deviation).mul_(rate / (1.0 - torch.pow(first, steps))))


def clipped(grad: Tensor, norm: Tensor, max_norm: float | None) -> Tensor:
    """`grad`, scaled so that its norm is at most `max_norm`; no branch depends on data."""
    return grad if max_norm is None else grad * (max_norm / (norm + 1e-6)).clamp(max=1.0)
