"""A binary tree of sums, to draw leaves by their mass."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array


class SumTree:
    """Leaves 0 .. size - 1. Parents are recomputed from both children, never by differences, so sums do not drift."""

    def __init__(self, size: int) -> None:
        self._depth = max(1, (size - 1).bit_length())
        self._first = 1 << self._depth
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Mass of all leaves."""
        return float(self._nodes[1])

    def get(self, leaves: Array) -> Array:
        """Mass of `leaves [B]`."""
        masses: Array = self._nodes[self._first + leaves]
        return masses

    def set(self, leaves: Array, masses: Array) -> None:
        """Set the mass of `leaves [B]`; of a leaf that is named twice, the last counts."""
        nodes = self._nodes
        at = leaves + self._first
        nodes[at] = masses
        for _ in range(self._depth):
            at = at >> 1
            nodes[at] = nodes[2 * at] + nodes[2 * at + 1]

    def set_range(self, start: int, masses: Array) -> None:
        """Set consecutive leaves from `start` on: as `set`, for a whole segment at a time."""
        nodes, low, high = self._nodes, start + self._first, start + self._first + len(masses)
        nodes[low:high] = masses
        for _ in range(self._depth):
            low, high = low >> 1, ((high - 1) >> 1) + 1
            nodes[low:high] = nodes[2 * low : 2 * high : 2] + nodes[2 * low + 1 : 2 * high : 2]

    def find(self, masses: Array) -> Array:
        """The leaves `[B]` at which the running sum first exceeds `masses [B]`, each in [0, total).

        A leaf without mass is never found.
        """
        nodes = self._nodes
        rest: Array = masses.astype(np.float64)
        at: Array = np.ones(len(masses), dtype=np.int64)
        for _ in range(self._depth):
            at += at
            left = nodes.take(at)
            right = rest >= left
            # Guards against rounding: `rest` may reach the sum of a node by a last bit.
            right &= nodes.take(at + 1) > 0.0
            np.subtract(rest, left, out=rest, where=right)
            at += right
        return at - self._first
