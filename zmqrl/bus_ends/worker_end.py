"""A worker's end: a sink that fills what it was leased, and the writer of a worker with an arena."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from zmqrl.broker.events import Assignments, AssignmentSnapshot, StreamAssignment
from zmqrl.bus_ends.base import OpenSegment, SegmentSink
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import Array, SegmentId, SegmentMeta, SlotRef, Version

MOST_KEPT_VIEWS = 1024
"""Slots whose views are kept; a replay of many slots would keep more Python objects than data."""


class SegmentWriter(ABC):
    """Where a sink's segments are written: a slot of the arena, or their own memory."""

    keeps_segments = False
    """Whether a segment outlives its lease."""

    @abstractmethod
    def columns(self, ref: SlotRef) -> Mapping[str, Array]:
        """Writable views `[T, N, ...]` for a lease."""

    @abstractmethod
    def open_rows(self, vector_env: int, index: int, rows: int) -> None:
        """Valid rows stepped in the open segment."""

    @abstractmethod
    def seal(self, ref: SlotRef, meta: SegmentMeta) -> None:
        """The segment is whole."""

    @abstractmethod
    def start_stream(self, vector_env: int) -> None:
        """This worker steps `vector_env` from now on."""

    @abstractmethod
    def forget(self, ref: SlotRef) -> None:
        """Forget the segment of `ref`: it is accepted, or no longer leased to this sink."""

    def move(self, ref: SlotRef, to: SlotRef) -> None:
        """A sealed segment continues under another lease; only for a writer that keeps them."""
        raise NotImplementedError


class ArenaWriter(SegmentWriter):
    """Straight into the slot. Order: payload, header, seal, producer's record."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._views: dict[int, Mapping[str, Array]] = {}
        self._producers: dict[int, ProducerRecord] = {}

    def columns(self, ref: SlotRef) -> Mapping[str, Array]:
        views = self._views.get(ref.slot)
        if views is None:
            views = {name: column[ref.slot] for name, column in self._arena.columns.items()}
            if len(self._views) < MOST_KEPT_VIEWS:
                self._views[ref.slot] = views
        return views

    def open_rows(self, vector_env: int, index: int, rows: int) -> None:
        self._arena.streams.write_open(vector_env, index, rows)

    def seal(self, ref: SlotRef, meta: SegmentMeta) -> None:
        self._arena.write_meta(ref.slot, meta)
        self._arena.seal(ref)
        vector_env, incarnation, index = meta.id
        before = self._producers.get(vector_env) or self._arena.streams.read_producer(vector_env)
        after = ProducerRecord(incarnation, index, before.produced + meta.rows)
        self._producers[vector_env] = after
        self._arena.streams.write_producer(vector_env, after)
        self._arena.streams.write_open(vector_env, index + 1, 0)

    def start_stream(self, vector_env: int) -> None:
        self._producers.pop(vector_env, None)

    def forget(self, ref: SlotRef) -> None:
        """The slot is no longer leased to this sink; its views are harmless."""


class LeasedSink(SegmentSink):
    """Leases in, seals out; `_push` sends them to the broker."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer
        self._streams: tuple[StreamAssignment, ...] = ()
        self._gone: dict[int, int] = {}
        """Vector env to the incarnation that was stopped last: its env is closed, so it cannot continue."""
        self._impossible: dict[int, int] = {}
        """Vector env to incarnation of new assignments that cannot continue: the broker did not know they ended."""
        self._serial = -1
        self._acked: Mapping[int, tuple[int, int]] = {}
        self._stop = False
        self._free: list[SlotRef] = []
        self._open: set[SlotRef] = set()
        self._sealed: dict[SlotRef, SegmentId] = {}
        self._unpushed: list[SlotRef] = []
        self._next: dict[int, int] = {}
        self._moves = 0
        self._opened_at: dict[SlotRef, float] = {}
        self._segments, self._busy_s = 0, 0.0
        """Sealed so far, and the seconds from `open` to `seal` of these."""

    @abstractmethod
    def _push(self, refs: Sequence[SlotRef]) -> None:
        """Notify the broker that these are sealed; never blocks."""

    def open(self, vector_env: int) -> OpenSegment | None:
        if not self._free:
            return None
        ref = self._free.pop()
        self._open.add(ref)
        self._opened_at[ref] = time.perf_counter()
        return OpenSegment(ref, self._writer.columns(ref))

    def progress(self, vector_env: int, rows: int) -> None:
        self._moves += 1
        self._writer.open_rows(vector_env, self._next[vector_env], rows)

    def busy(self) -> None:
        self._moves += 1

    def seal(self, segment: OpenSegment, id: SegmentId, version: Version, rows: int) -> None:
        ref = segment.ref
        self._open.discard(ref)
        self._segments += 1
        self._busy_s += time.perf_counter() - self._opened_at.pop(ref)
        self._writer.seal(ref, SegmentMeta(id, version, rows))
        self._next[id.vector_env] = id.index + 1
        self._sealed[ref] = id
        self._moves += 1
        self._unpushed.append(ref)
        if not self._free:
            self._flush()

    def abandon(self, segment: OpenSegment) -> None:
        self._open.discard(segment.ref)
        self._opened_at.pop(segment.ref, None)
        self._free.append(segment.ref)

    def _flush(self) -> None:
        """Seals go out together at the next `poll`, at once when there is nothing left to write into."""
        if self._unpushed:
            refs, self._unpushed = self._unpushed, []
            # what was moved to another lease, or accepted, since it was sealed is there no more
            self._push([ref for ref in refs if ref in self._sealed])

    def _apply(self, snapshot: AssignmentSnapshot) -> None:
        """Apply the newest message of the broker; only the newest counts."""
        if snapshot.assignments is not None and snapshot.serial != self._serial:
            self._apply_assignments(snapshot.assignments, snapshot.serial)
        self._acked = snapshot.acked
        leases = set(snapshot.leases)
        unleased = []
        for ref, id in list(self._sealed.items()):
            if self._is_accepted(id):
                del self._sealed[ref]
                self._writer.forget(ref)
            elif ref not in leases:
                unleased.append(ref)
        self._free = [r for r in snapshot.leases if r not in self._sealed and r not in self._open]
        self._relocate(sorted(unleased, key=lambda ref: self._sealed[ref]))

    def _relocate(self, unleased: Sequence[SlotRef]) -> None:
        """Sealed, not accepted, and the lease is gone: another takes its place, or it waits for one."""
        for ref in unleased:
            if not self._writer.keeps_segments:
                del self._sealed[ref]
                self._writer.forget(ref)
            elif self._free:
                to = self._free.pop(0)
                self._writer.move(ref, to)
                self._sealed[to] = self._sealed.pop(ref)
                self._unpushed.append(to)

    def _reported_streams(self) -> dict[int, int]:
        """Vector env to incarnation: those of the assignments, followed or not, and those of unaccepted segments."""
        unaccepted = {id.vector_env: id.incarnation for id in self._sealed.values()}
        return {
            **self._impossible,
            **unaccepted,
            **{assignment.vector_env: assignment.incarnation for assignment in self._streams},
        }

    def _stopped(self) -> list[int]:
        """Vector envs that are named and not stepped any more."""
        return sorted(self._reported_streams().keys() - {assignment.vector_env for assignment in self._streams})

    def _apply_assignments(self, assignments: Sequence[StreamAssignment], serial: int) -> None:
        known = {assignment.vector_env: assignment.incarnation for assignment in self._streams}
        followed = {assignment.vector_env: assignment.incarnation for assignment in assignments}
        self._gone |= {v: incarnation for v, incarnation in known.items() if followed.get(v) != incarnation}
        self._impossible = {v: incarnation for v, incarnation in followed.items() if self._gone.get(v) == incarnation}
        self._streams = tuple(assignment for assignment in assignments if assignment.vector_env not in self._impossible)
        self._serial = serial
        for assignment in self._streams:
            if known.get(assignment.vector_env) != assignment.incarnation:
                self._start_stream(assignment)

    def _start_stream(self, assignment: StreamAssignment) -> None:
        self._next[assignment.vector_env] = assignment.next_index
        self._writer.start_stream(assignment.vector_env)

    def _is_accepted(self, id: SegmentId) -> bool:
        return (id.incarnation, id.index) < self._acked.get(id.vector_env, (-1, 0))

    def _assignments(self) -> Assignments:
        return Assignments(self._streams, self._stop)
