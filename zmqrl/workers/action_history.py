"""The actions of one vector env that a successor would have to repeat: a window of rows that grows at its end."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array

FIRST_CAPACITY = 64


class ActionHistory:
    """Rows `[N, ...]` from `first` on, all N envs side by side. Small whole numbers are kept as bytes.

    Appending and reading cost what they move: FULL reads the window every round of sync.
    """

    def __init__(self) -> None:
        self.first = 0
        """Row, counted over all segments, of the oldest action kept."""
        self._begin = self._end = 0
        self._rows: Array | None = None

    def append(self, actions: Array) -> None:
        """Add `actions [T, N, ...]`."""
        rows = self._room_for(actions)
        rows[self._end : self._end + len(actions)] = actions
        self._end += len(actions)

    def forget_before(self, row: int) -> None:
        """Rows below `row` are no longer needed."""
        gone = min(max(0, row - self.first), self._end - self._begin)
        self._begin += gone
        self.first += gone

    def view(self) -> Array | None:
        """The rows kept, without a copy, and never written again: others are added behind. None when there are none."""
        return None if self._rows is None or self._begin == self._end else self._rows[self._begin : self._end]

    def load(self, actions: Array | None) -> None:
        """Begin again at row 0 with `actions`."""
        self.first = self._begin = self._end = 0
        self._rows = None
        if actions is not None:
            self.append(actions)

    def _room_for(self, actions: Array) -> Array:
        old = self._rows
        dtype = _dtype_of(actions) if old is None else np.promote_types(old.dtype, _dtype_of(actions))
        kept, need = self._end - self._begin, len(actions)
        if old is not None and old.dtype == dtype and self._end + need <= len(old):
            return old
        capacity = max(FIRST_CAPACITY, 2 * (kept + need))
        rows: Array = np.empty((capacity, *actions.shape[1:]), dtype)
        if old is not None:
            rows[:kept] = old[self._begin : self._end]
        self._rows, self._begin, self._end = rows, 0, kept
        return rows


def _dtype_of(actions: Array) -> np.dtype[np.generic]:
    if actions.dtype.kind in "iu" and actions.size and actions.min() >= 0 and actions.max() < 256:
        return np.dtype(np.uint8)
    return actions.dtype
