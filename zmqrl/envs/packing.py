"""Observations of discrete and composite spaces, written into the rows of one array."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from zmqrl.envs.base import first_bad_slot
from zmqrl.envs.returned import KINDS, BadValue
from zmqrl.errors import name_of
from zmqrl.spaces import Array, PartSpec, SpaceSpec, view

WHOLE = slice(None)


class BadObservation(BadValue):
    """An observation is not of its space. The text continues a sentence: `an observation of shape (3,), ...`."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "observation")


class Packer:
    """Writes observations into `out [N, *space.shape]`, which it keeps."""

    def __init__(self, space: SpaceSpec, out: Array) -> None:
        self._parts = [(part.path, _Part(part, view(out, space, part))) for part in space.leaves()]
        self.floats = tuple((part.name, part.rows) for _, part in self._parts if part.rows.dtype.kind == "f")
        """Name and rows `[N, ...]` of each part that may hold NaN."""
        mask = space.action_mask
        self.mask: Array | None = None if mask is None else view(out, space, mask)
        """The rows `[N, n]` of the part `action_mask`."""
        whole = self._parts[0][1]
        self.plain = whole if space.kind == "box" and not space.n else None
        """Part of observations that are one array of numbers; None for others."""

    def write(self, slot: int | slice, observation: Any) -> None:
        """Copy an observation into row `slot`, or observations with a leading axis into a slice of rows."""
        for path, part in self._parts:
            part.write(slot, _at(observation, path) if path else observation)


def packed_batch(space: SpaceSpec, observation: Any) -> tuple[Array, bool]:
    """Packed observations `[N, *space.shape]`, and whether `observation` is a single one, without a leading axis.

    A batch has the structure of an observation, and a leading axis in each part. BadObservation when it is of another
    space, or has NaN or a number that is not finite in float32.
    """
    part = next(iter(space.leaves()))
    first, shape = np.asarray(_at(observation, part.path)), _shape_in_env(part.space)
    single = first.ndim == len(shape)
    if not single and first.ndim != len(shape) + 1:
        name = f"part {part.name!r} of an observation" if part.name else "an observation"
        raise BadObservation(f"{name} of shape {first.shape}, its space has {shape}")
    rows = 1 if single else len(first)
    out: Array = np.zeros((rows, *space.shape), space.dtype)
    packer = Packer(space, out)
    packer.write(0 if single else WHOLE, observation)
    bad = first_bad_slot(packer.floats)
    if bad is not None:
        raise BadObservation(bad[1])
    return out, single


class _Part:
    def __init__(self, part: PartSpec, rows: Array) -> None:
        space, dtype = part.space, rows.dtype
        self.name, self.rows, self._space = part.name, rows, space
        self._shape = _shape_in_env(space)
        self._starts = np.array(space.starts or space.start, np.int64)
        self._counts = np.array(space.nvec or space.n, np.int64)
        self._is_counted = bool(space.choices or space.n)
        self.accepted = dtype
        """Dtype of the last array whose dtype allows only numbers that the space has."""
        self._least, self._most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)

    def array(self, value: Any) -> Array:
        try:
            return np.asarray(value)
        except Exception as error:  # an object of the user's may raise anything
            raise BadObservation(f"{self._what()} that is not an array: {name_of(error)}: {error}") from error

    def check(self, array: Array, lead: tuple[int, ...] = ()) -> np.dtype[Any]:
        """Raise `BadObservation` for another shape, or a number that the dtype of the space cannot hold.

        Floats of every size are allowed in a space of floats.

        Returns:
            The dtype of arrays that need no check but that of their shape.
        """
        if array.shape != (*lead, *self._shape):
            raise BadObservation(f"{self._what()} of shape {array.shape}, its space has {(*lead, *self._shape)}")
        found, own = array.dtype, self.rows.dtype
        if found is self.accepted:
            return found
        if found.kind not in KINDS or (found.kind == "f" and own.kind != "f"):
            raise BadObservation(f"{self._what()} of dtype {found}, its space has dtype {own}")
        if own.kind == "f" or np.can_cast(found, own):
            self.accepted = found
        elif (outside := (array < self._least) | (array > self._most)).any():
            what = f"{self._what()} with {array[outside][0]}"
            raise BadObservation(f"{what}, its space has dtype {own} ({self._least} to {self._most})")
        return self.accepted

    def write(self, slot: int | slice, value: Any) -> None:
        if self._space.kind == "discrete" and not isinstance(slot, slice):
            self.rows[slot] = self._index(value)
            return
        array = value if type(value) is np.ndarray else self.array(value)
        self.check(array, (len(self.rows),) if isinstance(slot, slice) else ())
        if self._is_counted:
            array = self._whole_numbers(array.reshape(self.rows[slot].shape))
        self.rows[slot] = array

    def _index(self, value: Any) -> int:
        try:
            number = operator.index(value) - self._space.start
        except TypeError as error:
            raise BadObservation(f"{self._what()} {value!r:.40}, which is not a whole number") from error
        if not 0 <= number < self._space.n:
            raise self._outside(value)
        return number

    def _whole_numbers(self, array: Array) -> Array:
        counted: Array = array.astype(np.int64) - self._starts
        if ((counted < 0) | (counted >= self._counts)).any():
            raise self._outside(array)
        return counted

    def _outside(self, value: Any) -> BadObservation:
        return BadObservation(f"{self._what()} {str(value)[:60]}, which is outside of its space")

    def _what(self) -> str:
        return f"part {self.name!r} of an observation" if self.name else "an observation"


def _shape_in_env(space: SpaceSpec) -> tuple[int, ...]:
    return space.env_shape if space.kind == "multi_discrete" else space.shape


def _at(observation: Any, path: Iterable[str | int]) -> Any:
    value = observation
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"an observation without part {key!r} (found: {type(value).__name__})") from error
    return value
