"""A worker without an arena, over tcp and CURVE, against a real broker: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_ends.far_bus import TURN_S, FarBus, ready, take, write
from tests.shared_memory.bus_plans import COLUMNS, ENVS, ROWS, STEPS
from tests.support.waiting import until
from zmqrl.broker.events import Handover
from zmqrl.messages.bus import HostReport
from zmqrl.types import ColumnSpec

pytestmark = pytest.mark.whole


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FarBus]:
    held = FarBus(tmp_path)
    yield held
    held.close()


def test_segments_arrive_whole(tmp_path: Path) -> None:
    """Also images, which travel as LZ4 frames."""
    bus = FarBus(tmp_path, columns=(ColumnSpec("obs", "uint8", (STEPS + 1, ENVS, 96, 96)), *COLUMNS[1:]))
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        for index in range(8):
            write(sink, index)
            assert take(source, 1, sink) == [index]
        ledger = bus.arena.ledger()
        assert (ledger.stored, ledger.balanced) == (8 * ROWS, True)
    finally:
        bus.close()


def test_a_carrier_that_takes_nothing_is_tried_once_for_all_segments(
    bus: FarBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = bus.source(), bus.far_sink()
    ready(sink)
    tried: list[object] = []
    with monkeypatch.context() as away:
        away.setattr(sink._sender, "send", lambda frames: tried.append(frames))
        write(sink, 0)
        write(sink, 1)
        tried.clear()
        sink._push(sorted(sink._sealed))
        assert len(tried) == 1
    assert take(source, 2, sink) == [0, 1]


def test_a_broker_killed_in_between_loses_and_doubles_nothing(bus: FarBus) -> None:
    source, sink = bus.source(), bus.far_sink()
    ready(sink)
    seen, index = [], 0
    for _ in range(3):
        write(sink, index)
        seen += take(source, 1, sink)
        until(lambda: sink.poll(TURN_S) and not sink._sealed and len(sink._free) == 2, "leases")
        bus.kill(bus.broker)
        for later in (index + 1, index + 2):  # under leases that no broker will know
            write(sink, later)
        index += 3
        bus.broker = bus.start_broker()
        bus.agent.report(HostReport("local", {}, [], [], [], ""))
        bus.far_agent.report(HostReport("b", {0: 0}, [], [], [0], ""))
        seen += take(source, 2, sink)
    assert seen == list(range(index))
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.balanced) == (index * ROWS, True)


def test_segments_sealed_at_the_end_are_accepted_and_open_rows_counted(bus: FarBus) -> None:
    sink = bus.far_sink()
    ready(sink)
    write(sink, 0)
    until(lambda: sink.open(0) or (sink.poll(TURN_S) and None), "a lease")
    sink.progress(0, 3)
    sink.close()
    source = bus.source()
    until(lambda: source.take(TURN_S) is not None and bus.arena.ledger().dropped["unsealed"], "its last words")
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.dropped["unsealed"]) == (ROWS + 3, ROWS, 3)
    assert ledger.balanced


def test_a_silent_worker_is_removed_and_its_late_messages_are_dropped(tmp_path: Path) -> None:
    bus = FarBus(tmp_path, lost_after_s=0.3)
    try:
        (source, channel), sink = bus.learner(), bus.far_sink()
        ready(sink)
        write(sink, 0)
        assert take(source, 1, sink) == [0]
        until(lambda: sink.poll(TURN_S) and len(sink._free) == 2, "leases")
        bus.far_agent.report(HostReport("b", {0: 0}, [0], [], [0], ""))  # expected, also if no heartbeat has arrived
        sink._heartbeat.close()  # from now on it is as if its machine had stopped

        until(lambda: bus.reported_lost(), "the broker to say that it is lost")
        successor = bus.far_sink(spawn=1)
        (request,) = until(
            lambda: successor.poll(TURN_S) and (source.take(0.0), channel.handover_requests())[1], "requested"
        )
        channel.answer(Handover(0, request.incarnation, request.next_index, ()))
        ready(successor)
        write(sink, 1)  # it wakes up, under its old incarnation
        sink.poll(0.0)
        write(successor, 1, request.incarnation)
        assert take(source, 1, successor) == [1]
        sink.poll(4 * TURN_S)
        assert source.take(4 * TURN_S) == []
        ledger = bus.arena.ledger()
        assert (ledger.stored, ledger.balanced) == (2 * ROWS, True)
    finally:
        bus.close()
