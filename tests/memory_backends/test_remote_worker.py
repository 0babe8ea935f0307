"""A worker without an arena, over tcp and CURVE, against a real broker: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from tests.memory_backends.event_pipe import EventPipe
from tests.memory_backends.real_bus import WAIT_S, RealBus
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.waiting import until
from zmqrl.config.plan import Boot, Endpoints, Keys, Listen
from zmqrl.memory_backends.base import TakeUp
from zmqrl.memory_backends.zmq import ZmqSink, ZmqSource
from zmqrl.messages.bus import HostReport
from zmqrl.types import SegmentId, Version
from zmqrl.wire.agent_link import AgentLink

pytestmark = pytest.mark.whole
TURN_S = 0.05


def pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class FarBus(RealBus):
    """The broker listens on loopback too; host b may come in."""

    def __init__(self, folder: Path, lost_after_s: float = 20.0) -> None:
        server, far = pair(), pair()
        self.server_keys = Keys(server[0], server_secret=server[1], allowed={far[0]: "b"})
        self.far_keys = Keys(server[0], *far)
        self.listen = Listen("127.0.0.1")
        self._events = EventPipe()
        plan = bus_plan("sync", workers=1, vector_envs=1, leases=2, slots=6)
        limits = replace(plan.config.limits, lost_after_s=lost_after_s)
        super().__init__(replace(plan, config=replace(plan.config, limits=limits), workers={"b": 1}), folder)
        self.listen = Listen("127.0.0.1", self._ports())
        self.far = Endpoints.tcp("127.0.0.1", self.listen.ports)
        self.far_agent = AgentLink(self.far, self.far_keys)
        self._ends.append(self.far_agent)

    def boot(self, role: str, index: int = 0, spawn: int = 0, inherit: bool = False) -> Boot:
        near = super().boot(role, index, spawn, inherit)
        if role != "broker":
            return near
        return replace(
            near, keys=self.server_keys, listen=self.listen, fds={**near.fds, "events": self._events.write_fd}
        )

    def far_sink(self, spawn: int = 0) -> ZmqSink:
        self._ends.append(ZmqSink(Boot("worker", 0, spawn, "b", self.plan, self.far, keys=self.far_keys)))
        return self._ends[-1]  # type: ignore[no-any-return]

    def _ports(self) -> tuple[int, int, int]:
        said = self._events.read(WAIT_S)[0]
        assert said["event"] == "listening"
        segments, notices, control = said["ports"]
        return segments, notices, control

    def said_lost(self) -> bool:
        events = self._events.read(TURN_S)
        return any(event.get("state") == "lost" and event["role"] == "worker" for event in events)

    def close(self) -> None:
        super().close()
        self._events.close()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FarBus]:
    held = FarBus(tmp_path)
    yield held
    held.close()


def write(sink: ZmqSink, index: int, incarnation: int = 0) -> None:
    segment = until(lambda: sink.open(0) or (sink.poll(TURN_S) and None), "a lease")
    for name, column in segment.columns.items():
        column[...] = index if name in ("obs", "action", "reward") else 1
    sink.progress(0, ROWS)
    sink.seal(segment, SegmentId(0, incarnation, index), Version(0, index), ROWS)


def take(source: ZmqSource, count: int, sink: ZmqSink) -> list[int]:
    """Indexes of the next segments; each came whole."""
    found: list[int] = []

    def turn() -> bool:
        sink.poll(0.0)
        for taken in source.take(TURN_S):
            for name in ("obs", "action", "reward"):
                assert (source.columns[name][taken.ref.slot] == taken.meta.id.index).all()
            assert source.columns["valid"][taken.ref.slot].all()
            found.append(taken.meta.id.index)
            source.release([taken.ref])
        return len(found) >= count

    until(turn, f"{count} segments")
    return found


def ready(sink: ZmqSink) -> None:
    until(lambda: sink.poll(TURN_S).streams, "orders")


def test_segments_arrive_whole(bus: FarBus) -> None:
    source, sink = bus.source(), bus.far_sink()
    ready(sink)
    for index in range(8):
        write(sink, index)
        assert take(source, 1, sink) == [index]
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.balanced) == (8 * ROWS, True)


def test_a_broker_killed_in_between_loses_and_doubles_nothing(bus: FarBus) -> None:
    source, sink = bus.source(), bus.far_sink()
    ready(sink)
    seen, index = [], 0
    for _ in range(3):
        write(sink, index)
        seen += take(source, 1, sink)
        until(lambda: sink.poll(TURN_S) and not sink.unacknowledged() and len(sink._free) == 2, "leases")
        bus.kill(bus.broker)
        for later in (index + 1, index + 2):  # under leases that no broker will know
            write(sink, later)
        index += 3
        bus.broker = bus.start_broker()
        bus.agent.report(HostReport("local", {}, [], [], []))
        bus.far_agent.report(HostReport("b", {0: 0}, [], [], [0]))
        seen += take(source, 2, sink)
    assert seen == list(range(index))
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.balanced) == (index * ROWS, True)


def test_what_is_sealed_at_the_end_is_booked_and_the_open_rows_are_counted(bus: FarBus) -> None:
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


def test_a_silent_worker_is_buried_and_its_late_words_are_not_stored(tmp_path: Path) -> None:
    bus = FarBus(tmp_path, lost_after_s=0.3)
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        write(sink, 0)
        assert take(source, 1, sink) == [0]
        until(lambda: sink.poll(TURN_S) and len(sink._free) == 2, "leases")
        sink._heartbeat.close()  # from now on it is as if its machine had stopped

        until(lambda: bus.said_lost(), "the broker to say that it is lost")
        successor = bus.far_sink(spawn=1)
        (request,) = until(lambda: successor.poll(TURN_S) and (source.take(0.0), source.take_up_requests())[1], "asked")
        source.answer(TakeUp(0, request.incarnation, request.next_index, ()))
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
