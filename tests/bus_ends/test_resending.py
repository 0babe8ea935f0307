"""When a worker sends segments again that are not accepted: a thin wire must not fill with copies."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.bus_ends.far_bus import FarBus, ready, write
from tests.shared_memory.bus_plans import HEARTBEAT_S
from tests.support.waiting import until
from zmqrl.bus_ends.remote_sink import MOST_RESEND_S
from zmqrl.bus_ends.zmq_sink import RESEND_HEARTBEATS, Resending
from zmqrl.messages.bus import WorkerAssignments
from zmqrl.types import SegmentId

FIRST_S, MOST_S = 1.0, 30.0
ONE, TWO = (SegmentId(0, 0, index) for index in range(2))


def repeats(resending: Resending, begin: float, end: float) -> list[float]:
    """When everything is sent again from `begin` to `end`, in seconds."""
    found = []
    for tick in range(int(begin * 10), int(end * 10)):
        if resending.is_due(tick / 10):
            resending.repeat()
            resending.sent([ONE, TWO], tick / 10)
            found.append(tick / 10)
    return found


@pytest.fixture
def resending() -> Resending:
    made = Resending(FIRST_S, MOST_S)
    made.sent([ONE, TWO], 0.0)
    return made


def test_without_an_answer_it_is_ever_more_rarely(resending: Resending) -> None:
    times = repeats(resending, 0.0, 300.0)
    assert times[:5] == [1.0, 3.0, 7.0, 15.0, 31.0]
    assert {b - a for a, b in pairwise(times[5:])} == {MOST_S}


def test_what_an_acceptance_took_is_allowed_twice_for_the_next_one(resending: Resending) -> None:
    assert repeats(resending, 0.0, 2.5) == [1.0]
    resending.accepted([ONE], 2.5)
    assert repeats(resending, 2.5, 10.0) == [7.5]
    resending.accepted([ONE, TWO], 100.0)
    resending.sent([ONE], 200.0)
    resending.accepted([ONE], 200.1)
    resending.sent([TWO], 200.2)
    assert repeats(resending, 200.2, 203.0) == [201.2]


def test_a_new_broker_or_lease_and_a_carrier_that_is_away_begin_anew(resending: Resending) -> None:
    repeats(resending, 0.0, 10.0)
    resending.restart(10.0)
    assert repeats(resending, 10.0, 14.0) == [10.0, 12.0]
    resending.not_taken(14.0)
    assert repeats(resending, 14.0, 16.0) == [15.0]
    resending.restart(16.0)
    resending.accepted([ONE], 16.0)
    assert repeats(resending, 16.0, 18.0) == [17.0], "what was sent before does not count"


def test_descriptors_are_repeated_at_one_interval() -> None:
    resending = Resending(FIRST_S, FIRST_S)
    resending.sent([ONE], 0.0)
    assert repeats(resending, 0.0, 5.0) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(("segment_s", "leases"), [(0.3, 2), (1.25, 2), (1.25, 8), (4.0, 4), (12.5, 2), (25.0, 2)])
def test_a_thin_wire_carries_hardly_any_copies(segment_s: float, leases: int) -> None:
    """It takes `segment_s` for a segment and carries one after the other, for an hour."""
    resending, wire, sealed = Resending(FIRST_S, MOST_RESEND_S), deque[SegmentId](), list[SegmentId]()
    accepted = copies = 0
    left_s = segment_s
    for tick in range(36_000):
        now = tick / 10
        while len(sealed) < leases:
            sealed.append(SegmentId(0, 0, accepted + len(sealed)))
            wire.append(sealed[-1])
            resending.sent(sealed[-1:], now)
        if resending.is_due(now):
            resending.repeat()
            wire.extend(sealed)
            copies += len(sealed)
            resending.sent(sealed, now)
        left_s -= 0.1
        if left_s < 0.05:
            arrived, left_s = wire.popleft(), segment_s
            if arrived in sealed:
                accepted += 1
                sealed.remove(arrived)
                resending.accepted([arrived], now)
    assert copies < 16
    assert accepted > 0.85 * 3600 / segment_s


class ThinWire:
    """In the place of a worker's sender: carries one segment after the other, each for `segment_s`."""

    def __init__(self, sender: Any, segment_s: float) -> None:
        self._sender, self._segment_s = sender, segment_s
        self._waiting: deque[tuple[float, list[bytes]]] = deque()
        self._free_at = 0.0
        self.sent = 0

    def send(self, frames: Any) -> bool:
        self.sent += 1
        self._waiting.append((0.0, [bytes(frame) for frame in frames]))
        return True

    def carry(self, now: float) -> None:
        """What has arrived by `now`."""
        if self._waiting and self._free_at == 0.0:
            self._free_at = now + self._segment_s
        while self._waiting and now >= self._free_at:
            self._sender.send(self._waiting.popleft()[1])
            self._free_at = self._free_at + self._segment_s if self._waiting else 0.0

    def close(self) -> None:
        self._sender.close()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FarBus]:
    held = FarBus(tmp_path)
    yield held
    held.close()


@pytest.mark.whole
def test_a_worker_behind_a_thin_wire(bus: FarBus) -> None:
    """A segment takes three times as long as its first repetition would wait.

    On a machine without free cores turns are late: for each half of this wait that is lost all leases may be repeated.
    """
    source, sink = bus.source(), bus.far_sink()
    ready(sink)
    first_s, turn_s, leases = RESEND_HEARTBEATS * HEARTBEAT_S, HEARTBEAT_S / 5, len(sink._free)
    wire = ThinWire(sink._sender, 3 * first_s)
    sink._sender = wire  # type: ignore[assignment]
    taken: list[int] = []
    written, segments, late_s = 0, 12, 0.0
    last = time.monotonic()

    def turn() -> bool:
        nonlocal written, late_s, last
        sink.poll(turn_s)
        took_s = time.monotonic() - last
        late_s += took_s if took_s > 2 * turn_s else 0.0
        last = time.monotonic()
        if written < segments and sink._free:
            write(sink, written)
            written += 1
        wire.carry(time.monotonic())
        for found in source.take(0.0):
            taken.append(found.meta.id.index)
            source.release([found.ref])
        return len(taken) == segments

    until(turn, lambda: f"{segments} segments: {taken}, {wire.sent} sent")
    assert taken == list(range(segments))
    assert wire.sent <= segments + 6 + leases * math.ceil(late_s / (first_s / 2)), "copies"


@pytest.mark.whole
def test_what_was_sent_to_a_broker_that_died_is_sent_to_the_next_one_at_once(bus: FarBus) -> None:
    """Even where the next repetition would be far away."""
    sink = bus.far_sink()
    ready(sink)
    wire = ThinWire(sink._sender, 1e9)
    sink._sender = wire  # type: ignore[assignment]
    write(sink, 0)
    sink.poll(0.0)
    for _ in range(20):
        sink._resending.repeat()
    sink._resending.sent([], time.monotonic())
    sent, leases = wire.sent, [*sink._sealed, *sink._free]
    sink._receive_assignments(WorkerAssignments(0, sink._broker + 1, leases, [], 1, None, False))
    until(lambda: sink.poll(HEARTBEAT_S) and wire.sent > sent, "a repetition")
