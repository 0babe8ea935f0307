"""Booking segments: in order per stream, each once; and what a dead worker left."""

from __future__ import annotations

from zmqrl.shared_memory.arena import ACCEPT, LEASE, SEAL, Arena
from zmqrl.shared_memory.stream_table import ProducerRecord, StreamRecord
from zmqrl.types import DROP_REASONS, SlotRef

UNSEALED, SUPERSEDED = DROP_REASONS.index("unsealed"), DROP_REASONS.index("superseded")


class Streams:
    """The broker's hand on the stream table. The arena's memory is the state; `records` is a copy of it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.records: list[StreamRecord] = [arena.streams.read(v) for v in range(arena.streams.streams)]
        self.stored = sum(record.stored for record in self.records)

    def is_sealed(self, ref: SlotRef) -> bool:
        """Whole, and not booked or taken back."""
        word, slot = self._arena.word, ref.slot
        return word(slot, SEAL) == ref.generation == word(slot, LEASE) and word(slot, ACCEPT) < ref.generation

    def accept(self, ref: SlotRef) -> bool | None:
        """Book a sealed slot. True: booked; False: refused and taken back; None: its turn has not come."""
        meta = self._arena.meta(ref.slot)
        vector_env, incarnation, index = meta.id
        record = self.records[vector_env]
        if (incarnation, index) > (record.incarnation, record.next_index):
            return None
        if (incarnation, index) < (record.incarnation, record.next_index):
            record.dropped[SUPERSEDED] += meta.rows
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

    def refuse_duplicate(self, vector_env: int) -> None:
        """Count a descriptor of a segment that is booked already."""
        record = self.records[vector_env]
        record.duplicates_refused += 1
        self._arena.streams.write(vector_env, record)

    def mend(self) -> None:
        """A broker died between the record and the accept word: the slot below its stream's next index is booked."""
        for ref in self._arena.sealed():
            vector_env, incarnation, index = self._arena.meta(ref.slot).id
            record = self.records[vector_env]
            if incarnation == record.incarnation and index == record.next_index - 1:
                self._arena.accept(ref)

    def sweep(self, vector_env: int) -> None:
        """Book what the dead owner of a vector env stepped and did not seal; all it sealed must be accepted before."""
        table, record = self._arena.streams, self.records[vector_env]
        producer = table.read_producer(vector_env)
        index, rows = table.read_open(vector_env)
        if rows and index >= record.next_index:
            record.dropped[UNSEALED] += rows
            table.write_producer(
                vector_env, ProducerRecord(producer.incarnation, producer.sealed_index, producer.produced + rows)
            )
            table.write(vector_env, record)
        table.write_open(vector_env, 0, 0)

    def repair_producer(self, ref: SlotRef) -> None:
        """Its worker died between the seal and its own record: the seal is what counts."""
        meta, table = self._arena.meta(ref.slot), self._arena.streams
        producer = table.read_producer(meta.id.vector_env)
        if (meta.id.incarnation, meta.id.index) > (producer.incarnation, producer.sealed_index):
            table.write_producer(
                meta.id.vector_env, ProducerRecord(meta.id.incarnation, meta.id.index, producer.produced + meta.rows)
            )

    def take_up(self, vector_env: int, incarnation: int, next_index: int) -> None:
        """Begin a new incarnation of a stream."""
        record = self.records[vector_env]
        record.incarnation, record.next_index = incarnation, next_index
        self._arena.streams.write(vector_env, record)
