"""The stream table: the stream records of every vector env, in the arena, so that a new broker finds them.

Two records per vector env: the broker's (what was accepted) and the producer's (what the worker sealed). Each is kept
twice and written in turn, its sequence word last: one store commits it, and a reader takes the copy with the higher
sequence.
After them plain words of the producer: rows stepped in a segment that is not accepted yet, with that segment's index. A
worker in the arena has one such segment, the open one; of a worker on another host the broker writes down what it
reports, one word for each segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Struct, field

from zmqrl.types import DROP_REASONS, ArenaUsage, SlotRef

LINE = 8
"""Words of a cache line; words of different writers never share one."""
COPY_WORDS = 3 * LINE
BROKER_AT, PRODUCER_AT, OPEN_AT = 0, 2 * COPY_WORDS, 4 * COPY_WORDS
ROWS_BITS = 24
MAX_INDEX = 1 << 38
MAX_ROWS = (1 << ROWS_BITS) - 1
PLAIN_FIELDS = 13

NO_SLOT = SlotRef(0, 0)
"""Generations begin at 1."""
NO_HOLDER = (-1, 0)


def stream_words(open_words: int) -> int:
    """Words of one vector env."""
    return OPEN_AT + open_words


class StreamRecord(Struct):
    """The broker's record of one vector env, in valid rows."""

    incarnation: int = -1
    """-1: never handed over."""
    next_index: int = 0
    stored: int = 0
    segments: int = 0
    """Segments stored, over all incarnations."""
    duplicates_refused: int = 0
    dropped: list[int] = field(default_factory=lambda: [0] * len(DROP_REASONS))
    closed_incarnation: int = -1
    """The incarnation whose unsealed rows have been counted, its worker being dead."""
    refused: SlotRef = NO_SLOT
    """The last slot that was superseded: in one store with its rows, so that they are counted once."""
    completed: int = 0
    """Rows that the producer's record lacks: of a worker that died before it wrote them there, or has no arena.

    The broker takes them from the header of a segment, an open word or a report, never from its own counts. In one
    store with what became of them.
    """
    late_index: int = 0
    """Index in the incarnation that was closed last: segments below it are accounted for."""
    late_rows: int = 0
    """Its rows in `dropped` as unsealed, of segments from `late_index` on."""
    holder: tuple[int, int] = NO_HOLDER
    """Index and spawn of the worker to which this incarnation was handed over."""


class ProducerRecord(Struct):
    """What the workers of this host that stepped the vector env have sealed. The broker never writes it."""

    incarnation: int = -1
    sealed_index: int = -1
    produced: int = 0
    """Valid rows, over all incarnations."""


class StreamTable:
    """Over the arena's words. Every method names its only writer."""

    def __init__(self, words: memoryview, base: int, streams: int, open_words: int = LINE) -> None:
        """`open_words`: the most segments of a stream that are stepped and not accepted."""
        self._words, self._base, self.streams, self.open_words = words, base, streams, open_words
        self._stride = stream_words(open_words)

    def read(self, vector_env: int) -> StreamRecord:
        """The newest committed record."""
        v = self._read(vector_env, BROKER_AT, PLAIN_FIELDS + len(DROP_REASONS))
        return StreamRecord(
            *(v[0] - 1, v[1], v[2], v[3], v[4], v[PLAIN_FIELDS:], v[5] - 1, SlotRef(v[6], v[7])),
            *(v[8], v[9], v[10], (v[11] - 1, v[12])),
        )

    def write(self, vector_env: int, record: StreamRecord) -> None:
        """Broker: commit the record."""
        r = record
        plain = (r.incarnation + 1, r.next_index, r.stored, r.segments, r.duplicates_refused, r.closed_incarnation + 1)
        holder, spawn = r.holder
        values = (*plain, *r.refused, r.completed, r.late_index, r.late_rows, holder + 1, spawn, *r.dropped)
        self._write(vector_env, BROKER_AT, values)

    def read_producer(self, vector_env: int) -> ProducerRecord:
        """The newest committed record of the producer."""
        values = self._read(vector_env, PRODUCER_AT, 3)
        return ProducerRecord(values[0] - 1, values[1] - 1, values[2])

    def write_producer(self, vector_env: int, record: ProducerRecord) -> None:
        """The worker of this host that holds the vector env."""
        self._write(vector_env, PRODUCER_AT, (record.incarnation + 1, record.sealed_index + 1, record.produced))

    def write_open(self, vector_env: int, index: int, rows: int) -> None:
        """The same worker: rows stepped in the open segment. One store, at every env step.

        The broker for a holder without an arena, of each segment that is not accepted.
        """
        at = self._base + vector_env * self._stride + OPEN_AT
        self._words[at + index % self.open_words] = (index << ROWS_BITS) | rows

    def read_open(self, vector_env: int, next_index: int = 0) -> dict[int, int]:
        """Index to rows of the segments from `next_index` on that were stepped and not accepted."""
        at = self._base + vector_env * self._stride + OPEN_AT
        found = ((word >> ROWS_BITS, word & MAX_ROWS) for word in self._words[at : at + self.open_words].tolist())
        return {index: rows for index, rows in found if rows and index >= next_index}

    def clear_open(self, vector_env: int) -> None:
        """Broker, once the holder is dead or has stopped: its successor begins with nothing."""
        at = self._base + vector_env * self._stride + OPEN_AT
        for word in range(at, at + self.open_words):
            self._words[word] = 0

    def produced(self, vector_env: int) -> int:
        """Rows that workers report as stepped: by their own words, and by what the broker completed from them."""
        completed = self.read(vector_env).completed
        return self.read_producer(vector_env).produced + completed

    def stored(self) -> int:
        """Valid rows stored in all streams."""
        return sum(self.read(v).stored for v in range(self.streams))

    def usage(self, leases: int) -> ArenaUsage:
        """Figures of the stream records, next to the slots that workers may write (`leases`)."""
        return ArenaUsage(leases, self.stored())

    def _read(self, vector_env: int, at: int, count: int) -> list[int]:
        words, first = self._words, self._base + vector_env * self._stride + at
        while True:
            copy = first if words[first] >= words[first + COPY_WORDS] else first + COPY_WORDS
            sequence = words[copy]
            values = words[copy + 1 : copy + 1 + count].tolist()
            if words[copy] == sequence:
                return values

    def _write(self, vector_env: int, at: int, values: Sequence[int]) -> None:
        words, first = self._words, self._base + vector_env * self._stride + at
        second = first + COPY_WORDS
        a, b = words[first], words[second]
        older, sequence = (second, a + 1) if a >= b else (first, b + 1)
        words[older + 1 : older + 1 + len(values)] = memoryview(array("q", values))
        words[older] = sequence
