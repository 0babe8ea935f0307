"""The stream table: the books of every vector env, in the arena, so that a new broker finds them.

Two records per vector env: the broker's (what was booked) and the producer's (what the worker sealed). Each is kept
twice and written in turn, its sequence word last: one store commits it, and a reader takes the copy with the higher
sequence.
Beside them one plain word of the producer: rows stepped in the open segment, with that segment's index.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from zmqrl.types import DROP_REASONS, SlotRef

COPY_WORDS = 16
BROKER_AT, PRODUCER_AT, OPEN_AT = 0, 2 * COPY_WORDS, 4 * COPY_WORDS
STREAM_WORDS = OPEN_AT + 8
STREAM_BYTES = 8 * STREAM_WORDS
ROWS_BITS = 24
MAX_INDEX = 1 << 38
MAX_ROWS = (1 << ROWS_BITS) - 1
PLAIN_FIELDS = 8

NO_SLOT = SlotRef(0, 0)
"""Generations begin at 1."""


@dataclass
class StreamRecord:
    """The broker's books of one vector env, in valid rows."""

    incarnation: int = -1
    """-1: never taken up."""
    next_index: int = 0
    stored: int = 0
    segments: int = 0
    """Segments stored, over all incarnations."""
    duplicates_refused: int = 0
    dropped: list[int] = field(default_factory=lambda: [0] * len(DROP_REASONS))
    swept: int = -1
    """The incarnation whose unsealed rows have been counted, its worker being dead."""
    refused: SlotRef = NO_SLOT
    """The last slot that was superseded: in one store with its rows, so that they are counted once."""


@dataclass
class ProducerRecord:
    """What the worker that owns the vector env has sealed. When it is dead the broker writes here in its place."""

    incarnation: int = -1
    sealed_index: int = -1
    produced: int = 0
    """Valid rows, over all incarnations."""


class StreamTable:
    """Over the arena's words. Every method names its only writer."""

    def __init__(self, words: memoryview, base: int, streams: int) -> None:
        self._words, self._base, self.streams = words, base, streams

    def read(self, vector_env: int) -> StreamRecord:
        """The newest committed books."""
        values = self._read(vector_env, BROKER_AT, PLAIN_FIELDS + len(DROP_REASONS))
        incarnation, next_index, stored, segments, duplicates, swept, slot, generation = values[:PLAIN_FIELDS]
        books = (incarnation - 1, next_index, stored, segments, duplicates, values[PLAIN_FIELDS:])
        return StreamRecord(*books, swept - 1, SlotRef(slot, generation))

    def write(self, vector_env: int, record: StreamRecord) -> None:
        """Broker: commit the books."""
        r = record
        plain = (r.incarnation + 1, r.next_index, r.stored, r.segments, r.duplicates_refused, r.swept + 1)
        values = (*plain, *r.refused, *r.dropped)
        self._write(vector_env, BROKER_AT, values)

    def read_producer(self, vector_env: int) -> ProducerRecord:
        """The newest committed record of the producer."""
        values = self._read(vector_env, PRODUCER_AT, 3)
        return ProducerRecord(values[0] - 1, values[1] - 1, values[2])

    def write_producer(self, vector_env: int, record: ProducerRecord) -> None:
        """The worker that owns the vector env; the broker once that worker is dead."""
        self._write(vector_env, PRODUCER_AT, (record.incarnation + 1, record.sealed_index + 1, record.produced))

    def write_open(self, vector_env: int, index: int, rows: int) -> None:
        """The same writer: rows stepped in the open segment. One store, at every env step."""
        self._words[self._base + vector_env * STREAM_WORDS + OPEN_AT] = (index << ROWS_BITS) | rows

    def read_open(self, vector_env: int) -> tuple[int, int]:
        """(index, rows) of the open segment."""
        word = self._words[self._base + vector_env * STREAM_WORDS + OPEN_AT]
        return word >> ROWS_BITS, word & ((1 << ROWS_BITS) - 1)

    def stored(self) -> int:
        """Valid rows stored in all streams."""
        return sum(self.read(v).stored for v in range(self.streams))

    def _read(self, vector_env: int, at: int, count: int) -> list[int]:
        words, first = self._words, self._base + vector_env * STREAM_WORDS + at
        while True:
            copy = first if words[first] >= words[first + COPY_WORDS] else first + COPY_WORDS
            sequence = words[copy]
            values = words[copy + 1 : copy + 1 + count].tolist()
            if words[copy] == sequence:
                return values

    def _write(self, vector_env: int, at: int, values: Sequence[int]) -> None:
        words, first = self._words, self._base + vector_env * STREAM_WORDS + at
        second = first + COPY_WORDS
        a, b = words[first], words[second]
        older, sequence = (second, a + 1) if a >= b else (first, b + 1)
        words[older + 1 : older + 1 + len(values)] = memoryview(array("q", values))
        words[older] = sequence
