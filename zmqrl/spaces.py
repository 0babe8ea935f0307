"""Observation and action spaces as plain data, and what a packed observation holds.

An observation is one array, whatever its space: transport, arena and replay know a shape and a dtype. A composite
observation is flat. Where all its parts are float32 they follow each other; else they are the bytes of each part,
in order, each at a multiple of 8.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from zmqrl.loading import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
else:
    Array = Any

ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
"""Item sizes of the dtypes that columns mostly have: an agent lays out an arena without numpy."""
SpaceKind: TypeAlias = Literal["discrete", "box", "multi_discrete", "parts"]
ALIGNMENT = 8
"""Bytes: of each part of a packed observation, and of the whole."""
ACTION_MASK = "action_mask"
"""The part that holds which actions are allowed; the network does not see it."""
PIXEL_LIMIT = 255.0
LARGEST_FLOAT32 = 3.4028234663852886e38


class SpaceSpec(Struct, frozen=True):
    """An observation or action space as plain data.

    `discrete`: one of `n`, dtype int64, shape `()`, numbered from 0 here and from `start` in the env.
    `multi_discrete`: `nvec[i]` values of entry i, dtype int64, shape `(len(nvec),)`, each numbered from 0 here and
    from `starts[i]` in the env. Actions of MultiBinary are a multi_discrete space of twos.
    `box`: `low` and `high` are flat, in C order. Of actions they are infinite on each side without a bound, and empty
    where no entry has a bound. Of observations they are empty where the space is unbounded in some entry; those that
    have the same bound in every entry hold it once. `n` is 2 of those of MultiBinary, which hold 0 and 1 alone.
    `parts`: the parts of a Dict or Tuple, those within parts too. The shape is `(float32 entries,)` or `(bytes,)`.
    """

    kind: SpaceKind
    shape: tuple[int, ...]
    dtype: str
    n: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    start: int = 0
    nvec: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    """Empty: all 0."""
    env_dtype: str = ""
    """Dtype of a multi_discrete action as the env takes it."""
    env_shape: tuple[int, ...] = ()
    parts: tuple[PartSpec, ...] = ()

    def for_env(self, actions: Array) -> Array:
        """Stored actions as the env takes them: of the space's dtype and shape, counted from `start`."""
        actions = actions.astype(self.dtype, copy=False)  # before the addition: a history keeps indices as bytes
        if self.kind == "multi_discrete":
            return self._multi_discrete_for_env(actions)
        return actions + self.start if self.start else actions

    def _multi_discrete_for_env(self, actions: Array) -> Array:
        if self.starts:
            actions = actions + np.array(self.starts, np.int64)
        shape = (*actions.shape[:-1], *(self.env_shape or self.shape))
        return actions.astype(self.env_dtype or self.dtype, copy=False).reshape(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a value."""
        return math.prod(self.shape) * item_bytes(self.dtype)

    @property
    def is_bounded(self) -> bool:
        """Whether it is a box with two finite bounds for every entry."""
        return bool(self.low) and all(map(math.isfinite, (*self.low, *self.high)))

    @property
    def unscalable(self) -> str | None:
        """Which entry of a bounded box cannot be scaled to its bounds in float32; None: all can."""
        with np.errstate(over="ignore"):
            width = np.array(self.high).astype(np.float32) - np.array(self.low).astype(np.float32)
            bad = ~((width > 0) & np.isfinite(2 * width))
        if not bad.any():
            return None
        entry = int(bad.argmax())
        found = f"entry {entry} of {len(bad)} has the bounds [{self.low[entry]:g}, {self.high[entry]:g}]"
        return f"{found}, and their distance must be above 0 and at most {LARGEST_FLOAT32 / 2:.2g} in float32"

    @property
    def is_image(self) -> bool:
        """Whether it is a box of pixels: rank 3, bytes from 0 to 255."""
        bounded = not self.low or (set(self.low) == {0.0} and set(self.high) == {PIXEL_LIMIT})
        return self.kind == "box" and len(self.shape) == 3 and self.dtype == "uint8" and bounded

    @property
    def action_mask(self) -> PartSpec | None:
        """The part `action_mask` of an observation."""
        return next((part for part in self.parts if part.name == ACTION_MASK), None)

    @property
    def choices(self) -> tuple[int, ...]:
        """The values of each entry of a discrete or multi_discrete space; empty for others."""
        return (self.n,) if self.kind == "discrete" else self.nvec

    def leaves(self) -> Iterator[PartSpec]:
        """The parts; a space without parts is one of its own, without a name."""
        yield from self.parts or (PartSpec("", self, 0),)


class PartSpec(Struct, frozen=True):
    """A part of a composite observation."""

    name: str
    """Key of a Dict, or index in a Tuple; of a part of a part the names from the outside in, joined by dots."""
    space: SpaceSpec
    offset: int
    """Offset of the part's first byte."""
    path: tuple[str | int, ...] = ()
    """The keys and indices from the observation to it."""


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize


def composite(parts: list[tuple[str, SpaceSpec, tuple[str | int, ...]]]) -> SpaceSpec:
    """The space of a packed observation with these parts: name, space and path of each."""
    floats = all(space.kind == "box" and space.dtype == "float32" for _, space, _ in parts)
    alignment = np.dtype(np.float32).itemsize if floats else ALIGNMENT
    placed, end = [], 0
    for name, space, path in parts:
        placed.append(PartSpec(name, space, end, path))
        end += -(-space.nbytes // alignment) * alignment
    shape, dtype = ((end // alignment,), "float32") if floats else ((end,), "uint8")
    return SpaceSpec("parts", shape, dtype, parts=tuple(placed))


def view(array: Any, space: SpaceSpec, part: PartSpec) -> Any:
    """The part of observations `array [..., *space.shape]` as `[..., *part.space.shape]`, without a copy.

    `array`: numpy or torch, whose last axis is contiguous. `part`: one of `space.leaves()`.
    """
    if not space.parts:
        return array
    size = np.dtype(space.dtype).itemsize
    begin, end = part.offset // size, (part.offset + part.space.nbytes) // size
    flat = array[..., begin:end]
    if part.space.dtype != space.dtype:
        flat = flat.view(_dtype(array, part.space.dtype))
    return flat.reshape((*flat.shape[:-1], *part.space.shape))  # the last axis alone is divided: no copy


def unpack(array: Any, space: SpaceSpec) -> dict[str, Any]:
    """Every part by name, as views: of numpy arrays and torch tensors alike."""
    return {part.name: view(array, space, part) for part in space.leaves()}


def _dtype(array: Any, name: str) -> Any:
    """A dtype of the library of `array`; that of a tensor is imported already."""
    return np.dtype(name) if isinstance(array, np.ndarray) else getattr(sys.modules["torch"], name)


def forbids_all(mask: Array, choices: tuple[int, ...]) -> Array:
    """Whether masks `[N, sum(choices)]` leave no value for some entry: bool `[N]`."""
    found: Array = np.zeros(len(mask), bool)
    for begin, end in ranges(choices):
        found |= ~mask[:, begin:end].any(axis=1)
    return found


def ranges(choices: tuple[int, ...]) -> list[tuple[int, int]]:
    """Begin and end of each entry in a row of `sum(choices)` numbers."""
    ends = np.cumsum(choices).tolist()
    return list(zip([0, *ends], ends, strict=False))


def nth_allowed(mask: Array, uniform: Array) -> Array:
    """One of the allowed values of each row of `mask [N, n]`, int64 `[N]`; all have the same probability.

    Where a row allows none, the result is the last value.
    """
    allowed = np.add.accumulate(mask != 0, 1, np.int64)
    chosen: Array = np.add.reduce(allowed <= (uniform * allowed[:, -1]).astype(np.int64)[:, None], 1, np.int64)
    return np.minimum(chosen, mask.shape[1] - 1)
