"""Replay over the slots that it holds: it stores and reads segments, and a sampler chooses what is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zmqrl.plugins import load
from zmqrl.random_streams import stream
from zmqrl.replay.base import AnySample, Replay, ReplaySample, SegmentBatch, SegmentMeta, SequenceSample, gather
from zmqrl.replay.columns import Shapes, check_columns
from zmqrl.replay.held_segments import HeldSegments
from zmqrl.replay.hindsight import Goals, Hindsight
from zmqrl.replay.samplers.base import AddedSegment, Sampler
from zmqrl.replay.sequences import Sequences
from zmqrl.replay.spec import ReplaySpec
from zmqrl.replay.transitions import Transitions
from zmqrl.types import Array, SlotRef, SpaceSpec, Weights


class SegmentReplay(Replay):
    """Samples in place from the arena's views; the caller gives slots back that it lets go of."""

    def __init__(
        self,
        columns: Mapping[str, Array],
        max_segments: int,
        seed: int,
        spec: ReplaySpec,
        observation: SpaceSpec | None = None,
        continues_episodes: bool = True,
    ) -> None:
        """`columns` are the views `[slots, T, N, ...]`; the last two arguments are those of `Hindsight`."""
        check_columns(spec, {name: column.shape[1:] for name, column in columns.items()})
        self._columns, self._seed, self._spec = columns, seed, spec
        self._reader: Transitions | Sequences
        self._reader = Sequences(columns, spec) if spec.length else Transitions(columns)
        self._held = HeldSegments(max_segments, self._reader.per_place)
        self._sampler: Sampler = _load_sampler(spec)(spec, self._held)
        self._segments: deque[tuple[SlotRef, SegmentMeta]] = deque()
        self._hindsight: Hindsight | None = None
        if spec.relabel is not None:
            self._hindsight = Hindsight(spec.relabel, observation, columns, self._held, continues_episodes)

    @property
    def size(self) -> int:
        """Valid rows, or sequences with some, that are held."""
        return self._held.size

    @property
    def segments(self) -> int:
        return self._held.count

    def may_be_drawn(self, rows: Array) -> Array:
        """Whether each of `rows [B]`, as samples name them, is held and may be drawn."""
        return self._held.may_be_drawn(rows)

    def add(self, ref: SlotRef, meta: SegmentMeta) -> SlotRef | None:
        """Hold a segment; returns the slot of the oldest one when it had to make room, for the caller to release.

        In sync segments must be added in one order (version, then vector env), or runs will differ.
        """
        evicted = self.release_oldest() if self._held.count == self._held.places else None
        numbers = self._reader.drawable(ref.slot)
        place = self._held.add(ref, numbers)
        self._segments.append((ref, meta))
        if self._hindsight is not None:
            self._hindsight.added(place, meta)
        views = {name: column[ref.slot] for name, column in self._columns.items()}
        priorities = self._first_priorities(ref.slot, numbers)
        self._sampler.added(AddedSegment(place, self._held.items(place), priorities, meta, views))
        return evicted

    def release_oldest(self) -> SlotRef:
        """Let go of the oldest segment."""
        place, ref = self._held.release_oldest()
        self._segments.popleft()
        self._sampler.released(place)
        return ref

    def held(self) -> Sequence[tuple[SlotRef, SegmentMeta]]:
        """What is held, oldest first."""
        return tuple(self._segments)

    def batches(self, segments: int) -> Iterator[SegmentBatch]:
        held = self.held()
        for first in range(0, len(held), segments):
            yield gather(self._columns, *zip(*held[first : first + segments], strict=True))

    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        """Draw `batch_size` valid rows with replacement; ValueError when none are held."""
        reader = self._reader
        if not isinstance(reader, Transitions):
            raise ValueError(f"replay has sequences (length {self._spec.length}): call sample_sequences")
        rows, weight = self._draw(batch_size, key)
        sample = reader.read(self._held, rows, weight, n_step, gamma)
        if self._hindsight is not None:
            self._hindsight.relabel(sample, n_step, gamma, stream(self._seed, "relabel", index=key))
        return sample

    def sample_sequences(self, count: int, key: int) -> SequenceSample:
        """Draw `count` sequences with replacement; ValueError when none are held."""
        reader = self._reader
        if not isinstance(reader, Sequences):
            raise ValueError("replay has transitions: set ReplaySpec.length for sequences")
        items, weight = self._draw(count, key)
        return reader.read(self._held, items, weight)

    def set_priorities(self, sample: AnySample, priorities: Array) -> None:
        """Set `priorities [B]` (|TD error|) of the rows or sequences whose segment is still held."""
        if priorities.shape != sample.rows.shape:
            raise ValueError(f"priorities must be {sample.rows.shape}, one per sampled item, got {priorities.shape}")
        alive = self._held.generations[sample.rows // self._held.per_place] == sample.generations
        self._sampler.set_priorities(sample.rows[alive], priorities[alive])

    def anneal(self, beta: float) -> None:
        self._sampler.anneal(beta)

    def state(self) -> dict[str, Array]:
        """What a successor needs alongside the held segments, which it adds in the same order."""
        state = self._sampler.state()
        for name, array in state.items():
            if array.ndim > 1 and len(array) != self._held.count:
                raise ValueError(
                    f"{type(self._sampler).__qualname__}.state: {name} {array.shape}: an array with more than one "
                    f"dimension must have a row for each of the {self._held.count} held segments; flatten it"
                )
        return {"replay.oldest": np.array([self._held.oldest], dtype=np.int64)} | state

    def load_state(self, state: Weights) -> None:
        """Call on an empty replay, before the held segments are added again, oldest first."""
        self._held.begin_at(int(state["replay.oldest"][0]))
        self._sampler.load_state(state)

    def _draw(self, count: int, key: int) -> tuple[Array, Array]:
        if not self._held.size:
            raise ValueError("replay is empty: add segments before sampling")
        items, weight = self._sampler.draw(stream(self._seed, "replay", index=key), count)
        if ":" in self._spec.sampler:
            self._check_drawn(items, weight, count)
        return items, weight

    def _check_drawn(self, items: Array, weight: Array, count: int) -> None:
        """Check what a user's sampler drew: an item that is not held would be read from a slot with other content."""
        who = f"{type(self._sampler).__qualname__}.draw"
        for what, array, kind in (("items", items, "int64"), ("weights", weight, "float32")):
            if array.shape != (count,) or array.dtype != kind:
                raise ValueError(f"{who}: {what} must be {kind} [{count}], got {array.dtype} {list(array.shape)}")
        if not np.isfinite(weight).all():
            raise ValueError(f"{who}: a weight is not finite")
        wrong = items[~self.may_be_drawn(items)]
        if len(wrong):
            raise ValueError(
                f"{who}: item {wrong[0]} is not held, or not a valid row; {len(wrong)} of {count} are wrong"
            )

    def _first_priorities(self, slot: int, numbers: Array) -> Array | None:
        name = self._spec.first_priority
        if name is None:
            return None
        priorities = self._reader.priorities(slot, name)[numbers]
        if not np.isfinite(priorities).all():
            raise ValueError(f"ReplaySpec.first_priority: column {name!r} has a value that is not finite")
        return priorities


def check_spec(
    spec: ReplaySpec, shapes: Shapes, is_deterministic: bool = False, observation: SpaceSpec | None = None
) -> None:
    """ConfigError when `spec` does not fit a segment or the observations, or names what cannot be loaded."""
    check_columns(spec, shapes, is_deterministic)
    _load_sampler(spec)
    if spec.relabel is not None:
        Goals(spec.relabel, observation)


def _load_sampler(spec: ReplaySpec) -> type[Sampler]:
    found: type[Sampler] = load(spec.kind, "zmqrl.replay.samplers", Sampler)
    return found


def build_replay(
    columns: Mapping[str, Array], capacity: int, seed: int, spec: ReplaySpec, observation: SpaceSpec | None = None
) -> SegmentReplay:
    """Replay by `Algorithm.replay`; `capacity` is in env steps, rounded up to segments."""
    _, steps, envs = columns["reward"].shape
    return SegmentReplay(columns, -(-capacity // (steps * envs)), seed, spec, observation)
