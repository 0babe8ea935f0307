"""Each record is kept twice; one store commits it, so a writer may die between any two words."""

from __future__ import annotations

from array import array

import pytest

from zmqrl.shared_memory.stream_table import (
    BROKER_AT,
    COPY_WORDS,
    PRODUCER_AT,
    ProducerRecord,
    StreamRecord,
    StreamTable,
    stream_words,
)
from zmqrl.types import SlotRef

OFFSET = 3


@pytest.fixture
def words() -> memoryview:
    return memoryview(array("q", bytes(8 * (OFFSET + 2 * stream_words(8)))))


@pytest.fixture
def table(words: memoryview) -> StreamTable:
    return StreamTable(words, OFFSET, 2)


def test_an_untouched_table_was_never_handed_over(table: StreamTable) -> None:
    assert table.read(1) == StreamRecord(-1, 0, 0, 0, 0, [0, 0, 0, 0])
    assert table.read_producer(1) == ProducerRecord(-1, -1, 0)
    assert table.read_open(1) == {}


def test_records_of_streams_and_sides_do_not_touch_each_other(table: StreamTable) -> None:
    first, second = (
        StreamRecord(0, 5, 40, 5, 1, [1, 2, 3, 4], 2, SlotRef(3, 4), 5, 6, 7, (8, 9)),
        StreamRecord(7, 1, 8, 2, 0, [0, 0, 9, 0]),
    )
    table.write(0, first)
    table.write_producer(0, ProducerRecord(0, 6, 56))
    table.write_open(0, 7, 12)
    table.write(1, second)
    assert (table.read(0), table.read(1)) == (first, second)
    assert (table.read_producer(0), table.read_producer(1)) == (ProducerRecord(0, 6, 56), ProducerRecord())
    assert (table.read_open(0), table.read_open(1)) == ({7: 12}, {})
    assert table.stored() == 48


def test_copies_are_written_in_turn(table: StreamTable, words: memoryview) -> None:
    seen = []
    for n in range(4):
        table.write(0, StreamRecord(0, n))
        seen.append((words[OFFSET + BROKER_AT], words[OFFSET + BROKER_AT + COPY_WORDS]))
    assert [max(pair) for pair in seen] == [1, 2, 3, 4]
    assert all(abs(a - b) == 1 for a, b in seen)


@pytest.mark.parametrize("at", [BROKER_AT, PRODUCER_AT])
def test_a_writer_that_dies_before_the_sequence_word_changes_nothing(
    table: StreamTable, words: memoryview, at: int
) -> None:
    for n in (3, 4):
        table.write(0, StreamRecord(0, n, n))
        table.write_producer(0, ProducerRecord(0, n, n))
        before = table.read(0), table.read_producer(0)
        a, b = words[OFFSET + at], words[OFFSET + at + COPY_WORDS]
        older = OFFSET + at + (COPY_WORDS if a > b else 0)
        kept = words[older + 1 : older + 6].tolist()
        words[older + 1 : older + 6] = memoryview(array("q", [99] * 5))
        assert (table.read(0), table.read_producer(0)) == before
        words[older + 1 : older + 6] = memoryview(array("q", kept))


def test_the_open_slot_holds_the_largest_segment(table: StreamTable) -> None:
    table.write_open(1, (1 << 38) - 1, (1 << 24) - 1)
    assert table.read_open(1) == {(1 << 38) - 1: (1 << 24) - 1}


def test_unaccepted_segments_have_one_slot_each(table: StreamTable) -> None:
    for index, rows in ((6, 64), (7, 64), (8, 30)):
        table.write_open(1, index, rows)
    table.write_open(1, 9, 0)
    assert table.read_open(1, next_index=7) == {7: 64, 8: 30}
    table.write_open(1, 8, 31)
    assert table.read_open(1) == {6: 64, 7: 64, 8: 31}
    table.clear_open(1)
    assert table.read_open(1) == {} == table.read_open(0)
