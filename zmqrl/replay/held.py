"""Which slots replay holds, oldest first, and which of their rows are valid."""

from __future__ import annotations

import numpy as np

from zmqrl.errors import ArenaError
from zmqrl.types import Array, SlotRef


class HeldSegments:
    """A ring of at most `places` segments. A row's name is place * T * N + t * N + env.

    Places follow the order in which segments were added, never the slots' numbers, so what is drawn does not depend on
    which slot the broker happened to lease. `added` counts segments for ever; the segment in place p was the
    `generations[p]`-th.
    """

    def __init__(self, places: int, steps: int, envs: int, added: int = 0) -> None:
        self.places, self.steps, self.envs = places, steps, envs
        self.added = self.oldest = added
        self.slots = np.zeros(places, dtype=np.int64)
        self.generations = np.full(places, -1, dtype=np.int64)
        self._refs: list[SlotRef | None] = [None] * places
        self._valid_rows = np.zeros((places, steps * envs), dtype=np.int32)
        # Running totals over all segments ever added, so that adding and releasing change one entry each.
        self._ends = np.zeros(places, dtype=np.int64)
        self._counts = np.zeros(places, dtype=np.int64)
        self._total = 0
        self._released = 0

    @property
    def count(self) -> int:
        """Segments held."""
        return self.added - self.oldest

    @property
    def rows(self) -> int:
        """Valid rows held."""
        return self._total - self._released

    def add(self, ref: SlotRef, valid: Array) -> int:
        """Hold a slot with its `valid [T, N]` column; returns its place."""
        if self.count == self.places:
            raise ArenaError(f"replay has {self.places} segments (its capacity): release the oldest first")
        place = self.added % self.places
        valid_rows = np.flatnonzero(valid)
        self._valid_rows[place, : len(valid_rows)] = valid_rows
        self._total += len(valid_rows)
        self.slots[place], self._refs[place], self.generations[place] = ref.slot, ref, self.added
        self._ends[place], self._counts[place] = self._total, len(valid_rows)
        self.added += 1
        return place

    def release_oldest(self) -> tuple[int, SlotRef]:
        """Let go of the oldest segment; returns its place and slot."""
        if not self.count:
            raise ArenaError("replay is empty: no segment to release")
        place = self.oldest % self.places
        ref = self._refs[place]
        assert ref is not None
        self._refs[place], self.generations[place] = None, -1
        self._released += int(self._counts[place])
        self.oldest += 1
        return place, ref

    def valid_rows(self, place: int) -> Array:
        """Names of the valid rows in a place."""
        local = self._valid_rows[place, : self._counts[place]].astype(np.int64)
        return local + place * self.steps * self.envs

    def nth_valid_rows(self, n: Array) -> Array:
        """Names of the `n`-th valid rows `[B]`, 0 <= n < rows, counted from the oldest segment."""
        first = self.oldest % self.places
        ends: Array = self._ends
        if first or self.count < self.places:
            # The ring in order of age; its running totals then grow monotonically.
            ends = np.concatenate((ends[first:], ends[:first]))[: self.count]
        wanted = n + self._released
        place = (np.searchsorted(ends, wanted, side="right") + first) % self.places
        within = wanted - (self._ends[place] - self._counts[place])
        rows: Array = place * (self.steps * self.envs) + self._valid_rows[place, within]
        return rows
