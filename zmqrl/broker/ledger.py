"""The stream records: segments accepted in order per stream, each once; and what a dead worker left.

Every step is repeatable: the broker may be killed between any two stores, and the next one continues from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zmqrl.broker import events as ev
from zmqrl.shared_memory.arena import ACCEPT, LEASE, SEAL, Arena
from zmqrl.shared_memory.stream_table import MAX_INDEX, NO_HOLDER, StreamRecord
from zmqrl.types import DROP_REASONS, DropReason, SegmentId, SegmentMeta, SlotRef, Version

UNSEALED, SUPERSEDED = DROP_REASONS.index("unsealed"), DROP_REASONS.index("superseded")
ROLLED_BACK, UNKNOWN = DROP_REASONS.index("rolled_back"), DROP_REASONS.index("unknown")


class StreamLedger:
    """Writes the stream table. The arena's memory is the state; `records` is a copy of it.

    Rows are counted as produced from what a worker wrote, or sent, alone: what was stored or dropped never adds to it.
    """

    def __init__(self, arena: Arena, segment_rows: int) -> None:
        """Completes what the broker before was killed in. `segment_rows`: the most valid rows of a segment, N * T."""
        self._arena, self._segment_rows = arena, segment_rows
        self._drops: list[ev.Dropped] = []
        self.records: list[StreamRecord] = [arena.streams.read(v) for v in range(arena.streams.streams)]
        self.stored = sum(record.stored for record in self.records)
        self._repair()

    def pop_dropped(self) -> list[ev.Dropped]:
        """What was dropped since the last call."""
        drops, self._drops = self._drops, []
        return drops

    def is_sealed(self, ref: SlotRef) -> bool:
        """Whole, and not accepted or taken back."""
        word, slot = self._arena.word, ref.slot
        return word(slot, SEAL) == ref.generation == word(slot, LEASE) and word(slot, ACCEPT) < ref.generation

    def is_sane(self, meta: SegmentMeta) -> bool:
        """Whether a header can be one of this run's."""
        known = 0 <= meta.id.vector_env < len(self.records)
        return known and 0 <= meta.id.index < MAX_INDEX and 0 <= meta.rows <= self._segment_rows

    def report_open(self, vector_env: int, index: int, rows: int) -> None:
        """Write how many rows a holder without an arena has stepped in a segment not accepted, where it is valid."""
        table, first = self._arena.streams, self.records[vector_env].next_index
        known = table.read_open(vector_env, first).get(index, 0)
        if first <= index < min(first + table.open_words, MAX_INDEX) and known < rows <= self._segment_rows:
            table.write_open(vector_env, index, rows)

    def accept(self, ref: SlotRef, meta: SegmentMeta, complete: bool) -> bool | None:
        """Accept a sealed slot of sane meta. True: accepted; False: refused, taken back; None: its turn has not come.

        `complete`: its worker is dead or has no arena, so what its record lacks is counted here. Else the turn comes
        once the worker has counted the segment itself.
        """
        record = self.records[meta.id.vector_env]
        here, expected = meta.id[1:], (record.incarnation, record.next_index)
        counted = self._is_counted(meta)
        if here > expected or not (counted or complete):
            return None
        if here < expected:
            new = self._refuse(record, meta, counted)
            record.refused = ref
            self._arena.streams.write(meta.id.vector_env, record)
            self._arena.lease(ref.slot)
            self._dropped(meta.id, meta.rows if new else 0, "superseded")
            return False
        record.next_index += 1
        record.stored += meta.rows
        record.completed += 0 if counted else meta.rows
        record.segments += 1
        self.stored += meta.rows
        self._arena.streams.write(meta.id.vector_env, record)
        self._arena.accept(ref)
        return True

    def is_late(self, meta: SegmentMeta) -> bool:
        """Whether its position was accepted, or has passed to a successor."""
        record = self.records[meta.id.vector_env]
        return meta.id[1:] < (record.incarnation, record.next_index)

    def refuse_late(self, meta: SegmentMeta) -> None:
        """Account for a late segment of a worker without an arena; it needs no slot."""
        new = self._refuse(self.records[meta.id.vector_env], meta, False)
        self._arena.streams.write(meta.id.vector_env, self.records[meta.id.vector_env])
        self._dropped(meta.id, meta.rows if new else 0, "superseded")

    def _refuse(self, record: StreamRecord, meta: SegmentMeta, counted: bool) -> bool:
        """Whether its rows are dropped by it; False for a duplicate.

        `counted`: as produced, by its worker. Else its rows are among the unsealed ones as far as it reported them. Of
        incarnations before the one that was closed last only these reports count.
        """
        if counted:
            record.dropped[SUPERSEDED] += meta.rows
            return True
        if meta.id.incarnation != record.closed_incarnation or meta.id.index < record.late_index:
            record.duplicates_refused += 1
            return False
        reported = min(meta.rows, record.late_rows)
        record.dropped[UNSEALED] -= reported
        record.dropped[SUPERSEDED] += meta.rows
        record.completed += meta.rows - reported
        record.late_index, record.late_rows = meta.id.index + 1, record.late_rows - reported
        return True

    def _is_counted(self, meta: SegmentMeta) -> bool:
        """Whether the record of a worker on this host has the segment: its last store but the descriptor."""
        producer = self._arena.streams.read_producer(meta.id.vector_env)
        return producer.incarnation == meta.id.incarnation and meta.id.index <= producer.sealed_index

    def refuse_duplicate(self, ref: SlotRef) -> None:
        """Count a descriptor of a segment that is accepted already."""
        meta = self._arena.meta(ref.slot)
        if self.is_sane(meta):
            record = self.records[meta.id.vector_env]
            record.duplicates_refused += 1
            self._arena.streams.write(meta.id.vector_env, record)

    def _repair(self) -> None:
        """A broker died between a record and the slot's word: the record is what counts."""
        for ref in self._arena.sealed():
            meta = self._arena.meta(ref.slot)
            if not self.is_sane(meta):
                continue
            record = self.records[meta.id.vector_env]
            if record.refused == ref:
                self._arena.lease(ref.slot)
            elif (meta.id.incarnation, meta.id.index) == (record.incarnation, record.next_index - 1):
                self._arena.accept(ref)

    def close_stream(self, vector_env: int) -> None:
        """Close an incarnation whose holder is dead or has stopped; all it sealed must have been accepted before.

        What it stepped and did not seal is dropped. With nothing in flight, words and stream records are compared.
        """
        table, record = self._arena.streams, self.records[vector_env]
        if record.closed_incarnation != record.incarnation:
            producer, first = table.read_producer(vector_env), record.next_index
            if producer.incarnation == record.incarnation:
                first = max(first, producer.sealed_index + 1)
            stepped = {i: min(rows, self._segment_rows) for i, rows in table.read_open(vector_env, first).items()}
            rows = sum(stepped.values())
            record.dropped[UNSEALED] += rows
            record.completed += rows
            record.closed_incarnation, record.late_index, record.late_rows = record.incarnation, record.next_index, rows
            unknown = producer.produced + record.completed - record.stored - sum(record.dropped)
            record.dropped[UNKNOWN] += max(0, unknown)
            table.write(vector_env, record)
            for index, of_one in sorted(stepped.items()):
                self._dropped(SegmentId(vector_env, record.incarnation, index), of_one, "unsealed")
            self._dropped(SegmentId(vector_env, record.incarnation, record.next_index), unknown, "unknown")
        table.clear_open(vector_env)

    def hand_over(
        self, vector_env: int, incarnation: int, next_index: int, holder: tuple[int, int] = NO_HOLDER
    ) -> None:
        """Begin a new incarnation of a stream, to be stepped by `holder` (index, spawn)."""
        record = self.records[vector_env]
        record.holder = holder
        record.incarnation, record.next_index = incarnation, next_index
        self._arena.streams.write(vector_env, record)

    def roll_back(self, vector_env: int, incarnation: int, next_index: int, stored: int) -> bool:
        """The learner rolled back: of a closed stream only the first `stored` rows count, the rest are abandoned.

        Rows that a predecessor abandoned count again when its FULL has them: the newest one may have been unreadable
        for a time. One store, so it is done once. False when fewer were ever accepted than it reports.
        """
        record = self.records[vector_env]
        lost = record.stored - stored
        if lost + record.dropped[ROLLED_BACK] < 0:
            return False
        record.stored, self.stored = stored, self.stored - lost
        record.dropped[ROLLED_BACK] += lost
        first = SegmentId(vector_env, record.incarnation, next_index)
        self.hand_over(vector_env, incarnation, next_index)
        self._dropped(first, lost, "rolled_back")
        return True

    def _dropped(self, first: SegmentId, rows: int, reason: DropReason) -> None:
        """After the store that counts them: a broker that dies between leaves a count without a line in its log."""
        if rows > 0:
            self._drops.append(ev.Dropped(first, rows, reason))


class Rollback(NamedTuple):
    """Where a learner rolled back to, with the rows of each vector env that were stored until there."""

    version: Version = Version(0, 0)
    rows: Sequence[int] = ()

    @property
    def incarnation(self) -> int:
        """Incarnation of vector envs from there; each is handed over under a later one. 0: no learner rolled back."""
        return self.version.incarnation << ev.RESUMED_SHIFT

    def is_behind(self, ledger: StreamLedger, vector_env: int) -> bool:
        """Whether its stream record still has what the learner rolled back from."""
        return 0 <= ledger.records[vector_env].incarnation < self.incarnation

    def reopen(self, ledger: StreamLedger, vector_env: int) -> ev.Fail | None:
        """Abandon in its stream record what the learner rolled back from; fails when it does not have that much."""
        if not self.is_behind(ledger, vector_env):
            return None
        if ledger.roll_back(vector_env, self.incarnation, self.version.n, self.rows[vector_env]):
            return None
        return ev.Fail(f"the learner rolled back to version {self.version}, newer than the stored rows")
