"""Booking segments: in order per stream, each once; and what a dead worker left.

Every step can be taken again: the broker may be killed between any two stores, and the next one goes on from the words.
"""

from __future__ import annotations

from zmqrl.shared_memory.arena import ACCEPT, LEASE, SEAL, Arena
from zmqrl.shared_memory.stream_table import MAX_INDEX, MAX_ROWS, ProducerRecord, StreamRecord
from zmqrl.types import DROP_REASONS, SegmentMeta, SlotRef

UNSEALED, SUPERSEDED = DROP_REASONS.index("unsealed"), DROP_REASONS.index("superseded")
ROLLED_BACK = DROP_REASONS.index("rolled_back")


class Streams:
    """The broker's hand on the stream table. The arena's memory is the state; `records` is a copy of it."""

    def __init__(self, arena: Arena, segment_rows: int, most_unbooked: int = 1) -> None:
        """`segment_rows`: the most valid rows of a segment, N * T; `most_unbooked`: sealed ones beside the open one."""
        self._arena, self._segment_rows = arena, segment_rows
        self._most_open_rows = min(segment_rows * (1 + most_unbooked), MAX_ROWS)
        self.records: list[StreamRecord] = [arena.streams.read(v) for v in range(arena.streams.streams)]
        self.stored = sum(record.stored for record in self.records)

    def is_sealed(self, ref: SlotRef) -> bool:
        """Whole, and not booked or taken back."""
        word, slot = self._arena.word, ref.slot
        return word(slot, SEAL) == ref.generation == word(slot, LEASE) and word(slot, ACCEPT) < ref.generation

    def is_sane(self, meta: SegmentMeta) -> bool:
        """Whether a header can be one of this run's."""
        known = 0 <= meta.id.vector_env < len(self.records)
        return known and 0 <= meta.id.index < MAX_INDEX and 0 <= meta.rows <= self._segment_rows

    def report_open(self, vector_env: int, index: int, rows: int) -> None:
        """In place of a worker that cannot see the arena: how far its open segment is. Nonsense is not written."""
        if 0 <= index < MAX_INDEX and 0 <= rows <= self._most_open_rows:
            self._arena.streams.write_open(vector_env, index, rows)

    def accept(self, ref: SlotRef, meta: SegmentMeta) -> bool | None:
        """Book a sealed slot of sane meta. True: booked; False: refused, taken back; None: its turn has not come."""
        vector_env, incarnation, index = meta.id
        record = self.records[vector_env]
        here, expected = (incarnation, index), (record.incarnation, record.next_index)
        if here > expected:
            return None
        if here < expected:
            record.dropped[SUPERSEDED] += meta.rows
            record.refused = ref
            self._arena.streams.write(vector_env, record)
            self._arena.lease(ref.slot)
            return False
        record.next_index += 1
        record.stored += meta.rows
        record.segments += 1
        self.stored += meta.rows
        self._arena.streams.write(vector_env, record)
        self._arena.accept(ref)
        return True

    def refuse_duplicate(self, ref: SlotRef) -> None:
        """Count a descriptor of a segment that is booked already."""
        meta = self._arena.meta(ref.slot)
        if self.is_sane(meta):
            record = self.records[meta.id.vector_env]
            record.duplicates_refused += 1
            self._arena.streams.write(meta.id.vector_env, record)

    def mend(self) -> None:
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

    def producer_has(self, meta: SegmentMeta) -> bool:
        """Whether the worker's own record names the segment: its last word on it but the descriptor."""
        producer = self._arena.streams.read_producer(meta.id.vector_env)
        return (meta.id.incarnation, meta.id.index) <= (producer.incarnation, producer.sealed_index)

    def produce(self, meta: SegmentMeta) -> None:
        """In place of a worker that is dead, or that cannot see the arena: count a sealed segment once."""
        if not self.producer_has(meta):
            produced = self._arena.streams.read_producer(meta.id.vector_env).produced
            record = ProducerRecord(meta.id.incarnation, meta.id.index, produced + meta.rows)
            self._arena.streams.write_producer(meta.id.vector_env, record)

    def sweep(self, vector_env: int) -> None:
        """Book what the dead owner stepped and did not seal; all it sealed must have been accepted before.

        With nothing in flight, produced is what the broker's books say: written as that, not added to.
        """
        table, record = self._arena.streams, self.records[vector_env]
        if record.swept != record.incarnation:
            index, rows = table.read_open(vector_env)
            if index >= record.next_index:
                record.dropped[UNSEALED] += min(rows, self._most_open_rows)
            record.swept = record.incarnation
            table.write(vector_env, record)
        produced = record.stored + sum(record.dropped)
        producer = table.read_producer(vector_env)
        if producer.produced != produced:
            table.write_producer(vector_env, ProducerRecord(record.incarnation, record.next_index - 1, produced))
        table.write_open(vector_env, 0, 0)

    def take_up(self, vector_env: int, incarnation: int, next_index: int) -> None:
        """Begin a new incarnation of a stream."""
        record = self.records[vector_env]
        record.incarnation, record.next_index = incarnation, next_index
        self._arena.streams.write(vector_env, record)

    def roll_back(self, vector_env: int, incarnation: int, next_index: int, stored: int) -> bool:
        """The learner went back: of a swept stream only the first `stored` rows count, the rest are given up.

        One store, so it is done once. False when fewer are booked than it says.
        """
        record = self.records[vector_env]
        lost = record.stored - stored
        if lost < 0:
            return False
        record.stored, self.stored = stored, self.stored - lost
        record.dropped[ROLLED_BACK] += lost
        self.take_up(vector_env, incarnation, next_index)
        return True
