"""The segments that replay holds, and what may be drawn from them."""

from __future__ import annotations

import numpy as np

from zmqrl.errors import ArenaError
from zmqrl.types import Array, SlotRef


class HeldSegments:
    """A ring of at most `places` segments, each with up to `per_place` items: rows, or sequences of rows.

    An item's name is place * per_place + its number in the segment. Places follow the order in which segments were
    added, never the slots' numbers, so what is drawn does not depend on which slot the broker happened to lease.
    `added` counts segments for ever; the segment in place p was the `generations[p]`-th.
    """

    def __init__(self, places: int, per_place: int) -> None:
        self.places, self.per_place = places, per_place
        self.added = self.oldest = 0
        self.slots = np.zeros(places, dtype=np.int64)
        self.generations = np.full(places, -1, dtype=np.int64)
        self._refs: list[SlotRef | None] = [None] * places
        self._items = np.zeros((places, per_place), dtype=np.int32)
        self._drawable = np.zeros((places, per_place), dtype=bool)
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
    def size(self) -> int:
        """Items that may be drawn."""
        return self._total - self._released

    def begin_at(self, added: int) -> None:
        """Continue the count of a predecessor. Only while empty."""
        assert not self.count, self.count
        self.added = self.oldest = added

    def add(self, ref: SlotRef, numbers: Array) -> int:
        """Hold a slot, of which the items `numbers` (ascending) may be drawn; returns its place."""
        if self.count == self.places:
            raise ArenaError(f"replay has {self.places} segments (its capacity): release the oldest first")
        place = self.added % self.places
        self._items[place, : len(numbers)] = numbers
        self._drawable[place, numbers] = True
        self._total += len(numbers)
        self.slots[place], self._refs[place], self.generations[place] = ref.slot, ref, self.added
        self._ends[place], self._counts[place] = self._total, len(numbers)
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
        self._drawable[place] = False
        self._released += int(self._counts[place])
        self.oldest += 1
        return place, ref

    def by_age(self) -> Array:
        """Places of the held segments, oldest first."""
        return np.arange(self.oldest, self.added) % self.places

    def items(self, place: int) -> Array:
        """Names of the items of a place that may be drawn."""
        numbers = self._items[place, : self._counts[place]].astype(np.int64)
        return numbers + place * self.per_place

    def nth(self, n: Array) -> Array:
        """Names of the `n`-th items `[B]`, 0 <= n < size, counted from the oldest segment."""
        first = self.oldest % self.places
        ends: Array = self._ends
        if first or self.count < self.places:
            # The ring in order of age; its running totals then grow monotonically.
            ends = np.concatenate((ends[first:], ends[:first]))[: self.count]
        wanted = n + self._released
        place = (np.searchsorted(ends, wanted, side="right") + first) % self.places
        within = wanted - (self._ends[place] - self._counts[place])
        names: Array = place * self.per_place + self._items[place, within]
        return names

    def may_be_drawn(self, items: Array) -> Array:
        """Whether each of `items [B]` names an item of a held segment that may be drawn."""
        inside = (items >= 0) & (items < self._drawable.size)
        found: Array = inside & self._drawable.reshape(-1)[np.where(inside, items, 0)]
        return found
