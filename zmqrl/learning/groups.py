"""Groups of parameters, each in one flat tensor with an optimiser of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from zmqrl.errors import ConfigError, check_field
from zmqrl.learning.optimisers import Adam, Optimiser
from zmqrl.loading import Tensor, torch

ALIGNMENT = 16
"""Entries: each tensor begins on a 64-byte line."""
TARGET = "target"
Target: TypeAlias = bool | str
"""False: what is trained. A name: the target of this name. True: the one called `target`."""


def target_name(target: Target) -> str:
    """Name of a target."""
    return TARGET if isinstance(target, bool) else target


def target_part(name: str) -> str:
    """What names of tensors of a target contain: `target`, and `target:NAME` for one with another name."""
    return TARGET if name == TARGET else f"{TARGET}:{name}"


@dataclass(frozen=True)
class Group:
    """Parameters that one optimiser steps together."""

    name: str
    of: tuple[str, ...] = ()
    """Towers and free parameters of the network; default: the one called `name`."""
    max_grad_norm: float | None = None
    """Bound of the gradient's Euclidean norm over the group."""
    optimiser: Optimiser = field(default_factory=Adam)
    """How a gradient moves the parameters."""
    target: Target | tuple[str, ...] = False
    """Names of the targets, which are copies of these parameters that `Net.update_targets` moves; True: `target`."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an optimiser that is none, and a target without a name."""
        fix = "Adam(), AdamW(), RAdam(), RMSProp() or SGD() of zmqrl.learning"
        check_field(self, "optimiser", isinstance(self.optimiser, Optimiser), "must be an optimiser", fix)
        check_field(self, "target", all(map(str.isidentifier, self.targets)), "must be names in letters and digits")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets."""
        names = (self.target,) if isinstance(self.target, (bool, str)) else self.target
        return tuple(target_name(name) for name in names if name)

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


def clipped(grad: Tensor, norm: Tensor, max_norm: float | None) -> Tensor:
    """`grad`, scaled so that its norm is at most `max_norm`; no branch depends on data."""
    return grad if max_norm is None else grad * (max_norm / (norm + 1e-6)).clamp(max=1.0)
