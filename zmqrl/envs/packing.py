"""Observations of discrete and composite spaces, written into the rows of one array."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from zmqrl.spaces import Array, PartSpec, SpaceSpec, view

WHOLE = slice(None)


class BadObservation(ValueError):
    """An observation is not of its space. The text continues a sentence: `an observation of shape (3,), ...`."""


class Packer:
    """Writes observations into `out [N, *space.shape]`, which it keeps."""

    def __init__(self, space: SpaceSpec, out: Array) -> None:
        self._parts = [(part.path, _Part(part, view(out, space, part))) for part in space.leaves()]
        self.floats = tuple((part.name, part.rows) for _, part in self._parts if part.rows.dtype.kind == "f")
        """Name and rows `[N, ...]` of each part that may hold NaN."""
        mask = space.action_mask
        self.mask: Array | None = None if mask is None else view(out, space, mask)
        """The rows `[N, n]` of the part `action_mask`."""

    def write(self, slot: int | slice, observation: Any) -> None:
        """Copy an observation into row `slot`, or observations with a leading axis into a slice of rows."""
        for path, part in self._parts:
            part.write(slot, _at(observation, path) if path else observation)


def packed_batch(space: SpaceSpec, observation: Any) -> tuple[Array, bool]:
    """Packed observations `[N, *space.shape]`, and whether `observation` is a single one, without a leading axis.

    A batch has the structure of an observation, and a leading axis in each part. BadObservation when it is of another
    space.
    """
    part = next(iter(space.leaves()))
    first, shape = np.asarray(_at(observation, part.path)), _shape_in_env(part.space)
    single = first.ndim == len(shape)
    if not single and first.ndim != len(shape) + 1:
        name = f"part {part.name!r} of an observation" if part.name else "an observation"
        raise BadObservation(f"{name} of shape {first.shape}, its space has {shape}")
    rows = 1 if single else len(first)
    out: Array = np.zeros((rows, *space.shape), space.dtype)
    Packer(space, out).write(0 if single else WHOLE, observation)
    return out, single


class _Part:
    def __init__(self, part: PartSpec, rows: Array) -> None:
        space = part.space
        self.name, self.rows, self._space = part.name, rows, space
        self._shape = _shape_in_env(space)
        self._takes_floats = rows.dtype.kind == "f"
        self._starts = np.array(space.starts or 0, np.int64)
        self._nvec = np.array(space.nvec, np.int64)

    def write(self, slot: int | slice, value: Any) -> None:
        if self._space.kind == "discrete" and not isinstance(slot, slice):
            self.rows[slot] = self._index(value)
            return
        array = value if type(value) is np.ndarray else np.asarray(value)
        lead = (len(self.rows),) if isinstance(slot, slice) else ()
        if array.shape != (*lead, *self._shape):
            raise BadObservation(f"{self._what()} of shape {array.shape}, its space has {(*lead, *self._shape)}")
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and not self._takes_floats):
            raise BadObservation(f"{self._what()} of dtype {array.dtype}, its space has dtype {self.rows.dtype}")
        if self._space.choices:
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
        numbers: Array = array - (self._starts if self._nvec.size else self._space.start)
        if ((numbers < 0) | (numbers >= (self._nvec if self._nvec.size else self._space.n))).any():
            raise self._outside(array)
        return numbers

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
