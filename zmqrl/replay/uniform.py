"""Replay that draws every valid row with the same probability, from the segments that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from zmqrl.errors import ArenaError
from zmqrl.ops.n_step import n_step_targets
from zmqrl.random_streams import stream
from zmqrl.replay.base import Replay, ReplaySample, SegmentMeta
from zmqrl.types import Array, SlotRef, Weights


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


class UniformReplay(Replay):
    """Samples in place from the arena's views; the caller gives slots back that it lets go of."""

    def __init__(self, columns: Mapping[str, Array], max_segments: int, seed: int) -> None:
        """`columns` are the views `[slots, T, N, ...]`; `max_segments` = ceil(replay.capacity / (T N))."""
        _, steps, envs = columns["reward"].shape
        self._columns, self._seed = columns, seed
        self._held = HeldSegments(max_segments, steps, envs)
        self._segments: deque[tuple[SlotRef, SegmentMeta]] = deque()

    @property
    def size(self) -> int:
        """Valid rows held."""
        return self._held.rows

    @property
    def segments(self) -> int:
        """Segments held."""
        return self._held.count

    def add(self, ref: SlotRef, meta: SegmentMeta) -> SlotRef | None:
        """Hold a segment; returns the slot of the oldest one when it had to make room, for the caller to release.

        In sync segments must be added in one order (version, then vector env), or runs will differ.
        """
        evicted = self.release_oldest() if self._held.count == self._held.places else None
        self._added(self._held.add(ref, self._columns["valid"][ref.slot]))
        self._segments.append((ref, meta))
        return evicted

    def release_oldest(self) -> SlotRef:
        """Let go of the oldest segment."""
        place, ref = self._held.release_oldest()
        self._segments.popleft()
        self._released(place)
        return ref

    def held(self) -> Sequence[tuple[SlotRef, SegmentMeta]]:
        """What is held, oldest first."""
        return tuple(self._segments)

    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        """Draw `batch_size` valid rows with replacement; ValueError when none are held."""
        if not self.size:
            raise ValueError("replay is empty: add segments before sampling")
        generator = stream(self._seed, "replay", index=key)
        rows, weight = self._draw(generator, batch_size)
        return self._read(rows, weight, n_step, gamma)

    def set_priorities(self, sample: ReplaySample, priorities: Array) -> None:
        """Uniform replay has none."""
        del sample, priorities

    def state(self) -> dict[str, Array]:
        """What a successor needs alongside the held segments, which it adds in the same order."""
        return {"replay.oldest": np.array([self._held.oldest], dtype=np.int64)}

    def load_state(self, state: Weights) -> None:
        """Call on an empty replay, before the held segments are added again, oldest first."""
        held = self._held
        self._held = HeldSegments(held.places, held.steps, held.envs, added=int(state["replay.oldest"][0]))

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Array, Array]:
        rows = self._held.nth_valid_rows(generator.integers(0, self.size, batch_size))
        return rows, np.ones(batch_size, dtype=np.float32)

    def _added(self, place: int) -> None:
        """For subclasses: a segment is now held in `place`."""

    def _released(self, place: int) -> None:
        """For subclasses: `place` is empty again."""

    def _read(self, rows: Array, weight: Array, n_step: int, gamma: float) -> ReplaySample:
        held, columns = self._held, self._columns
        place, within = np.divmod(rows, held.steps * held.envs)
        t, env = np.divmod(within, held.envs)
        slot = held.slots[place]
        window = t[:, None] + np.arange(n_step)
        present = window < held.steps
        at = (slot[:, None], np.minimum(window, held.steps - 1), env[:, None])
        flags = (columns["terminated"][at], columns["truncated"][at])
        target = n_step_targets(columns["reward"][at], *flags, present, gamma)
        return ReplaySample(
            obs=columns["obs"][slot, t, env],
            action=columns["action"][slot, t, env],
            n_step_return=target.n_step_return,
            next_obs=columns["obs"][slot, t + target.length, env],
            discount=target.discount,
            weight=weight,
            rows=rows,
            generations=held.generations[place],
        )
