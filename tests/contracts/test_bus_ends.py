"""One suite for both kinds of experience stream: what `bus_ends/base.py` and `learner_end.py` promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.bus_ends.real_bus import RealBus
from tests.shared_memory.bus_plans import COLUMNS, ROWS, bus_plan
from tests.support.marks import at_once
from tests.support.waiting import WAIT_S, until
from zmqrl.bus_ends.base import OpenSegment, SegmentSink
from zmqrl.bus_ends.inproc import InprocStream
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource, TakenSegment
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, SegmentId, Version

LEASES, SLOTS = 2, 6
TURN_S = 0.05


@dataclass
class Ends:
    """All ends of a stream with one worker and two vector envs."""

    source: SegmentSource
    channel: LearnerChannel
    sink: SegmentSink
    arena: Arena

    def open(self, vector_env: int) -> OpenSegment:
        return until(lambda: self.sink.open(vector_env) or (self.sink.poll(TURN_S) and None), "a lease")  # type: ignore[no-any-return]

    def write(self, vector_env: int, index: int, rows: int = ROWS) -> None:
        segment = self.open(vector_env)
        for number, column in enumerate(segment.columns.values()):
            column[...] = (10 * index + number) % 100
        self.sink.progress(vector_env, rows)
        self.sink.seal(segment, SegmentId(vector_env, 0, index), Version(0, index), rows)

    def take(self, count: int = 1) -> list[TakenSegment]:
        taken: list[TakenSegment] = []

        def turn() -> bool:
            self.sink.poll(0.0)
            taken.extend(self.source.take(TURN_S))
            return len(taken) >= count

        until(turn, f"{count} segments")
        return taken


@pytest.fixture(params=["inproc", "zmq"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    if request.param == "inproc":
        stream = InprocStream(bus_plan("single", vector_envs=2, leases=LEASES, slots=SLOTS))
        held = Ends(stream.source, stream.channel, stream.sink, stream.arena)
        begin(held)
        yield held
        LearnerEnds(held.source, held.channel).close()
        held.sink.close()
    else:
        bus = RealBus(bus_plan("sync", 1, 2, LEASES, SLOTS), tmp_path)
        held = Ends(*bus.learner(), bus.sink(), bus.arena)
        begin(held)
        yield held
        bus.close()


def begin(ends: Ends) -> None:
    assignments = until(lambda: ends.sink.poll(TURN_S).streams, "assignments")
    assert [(o.vector_env, o.incarnation, o.next_index, o.states) for o in assignments] == [
        (0, 0, 0, None),
        (1, 0, 0, None),
    ]


def test_a_segment_arrives_whole_and_once(ends: Ends) -> None:
    ends.write(1, 0, rows=5)
    (taken,) = ends.take()
    assert (taken.meta.id, taken.meta.version, taken.meta.rows) == (SegmentId(1, 0, 0), Version(0, 0), 5)
    for number, spec in enumerate(COLUMNS):
        column = ends.source.columns[spec.name][taken.ref.slot]
        assert (column.shape, str(column.dtype)) == (spec.shape, spec.dtype)
        assert (column == np.asarray(number, spec.dtype)).all(), spec.name
    assert ends.source.stored() == 5
    assert ends.source.take(TURN_S) == []
    until(lambda: ends.sink.poll(TURN_S) and not ends.sink._sealed, "the acknowledgement")


def test_segments_come_in_stream_order_and_slots_go_round(ends: Ends) -> None:
    slots, seen = set(), []
    for index in range(2 * SLOTS):
        ends.write(0, index)
        ends.write(1, index)
        taken = ends.take(2)
        seen += [t.meta.id for t in taken]
        slots |= {t.ref.slot for t in taken}
        ends.source.release([t.ref for t in taken])
    for vector_env in (0, 1):
        assert [id.index for id in seen if id.vector_env == vector_env] == list(range(2 * SLOTS))
    assert len(slots) > LEASES
    assert ends.source.stored() == 4 * SLOTS * ROWS
    assert ends.arena.ledger().balanced


def test_leases_are_the_flow_control(ends: Ends) -> None:
    first, second = ends.open(0), ends.open(1)
    assert first.ref.slot != second.ref.slot
    ends.sink.poll(TURN_S)
    assert ends.sink.open(0) is None
    ends.sink.abandon(first)
    again = ends.sink.open(0)
    assert again is not None and again.ref == first.ref, "an abandoned lease is kept"


def test_unreleased_slots_are_never_overwritten(ends: Ends) -> None:
    kept: list[TakenSegment] = []
    while len(kept) < SLOTS - LEASES:
        ends.write(0, len(kept))
        kept += ends.take()
    for segment in range(LEASES):
        ends.open(segment).columns["obs"][...] = -1
    for index, segment in enumerate(kept):
        assert (ends.source.columns["obs"][segment.ref.slot] == 10 * index).all()


def test_what_is_abandoned_never_happened(ends: Ends) -> None:
    segment = ends.open(0)
    ends.sink.progress(0, 3)
    ends.sink.progress(0, 0)
    ends.sink.abandon(segment)
    ends.write(0, 0)
    assert [t.meta.id.index for t in ends.take()] == [0]
    ledger = ends.arena.ledger()
    assert (ledger.produced, ledger.balanced) == (ROWS, True)


@at_once
def test_taking_nothing_ends_in_time(ends: Ends) -> None:
    assert ends.source.take(0.1) == []


def test_an_announcement_and_a_report_do_not_block(ends: Ends) -> None:
    """So many that a tenth of a second each would be minutes."""
    begun = time.monotonic()
    for n in range(500):
        ends.channel.announce(Notice(Version(0, n), "key", 1, "sha", n))
        ends.channel.report(n, n)
    assert time.monotonic() - begun < WAIT_S / 2
    assert ends.channel.handover_requests() == []


def test_releasing_twice_gives_a_slot_back_once(ends: Ends) -> None:
    ends.write(0, 0)
    (taken,) = ends.take()
    for _ in range(2):
        ends.source.release([taken.ref])
    for index in range(1, SLOTS):
        ends.write(0, index)
        ends.source.release([t.ref for t in ends.take()])
    assert ends.arena.ledger().balanced


def test_ends_close_twice(ends: Ends) -> None:
    for end in (ends.sink, ends.sink, ends.source, ends.source, ends.channel, ends.channel):
        end.close()
