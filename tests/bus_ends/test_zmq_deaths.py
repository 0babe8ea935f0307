"""The zmq backend with real processes that are killed, messages that are lost, and strangers that talk."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.bus_ends.real_bus import RealBus
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.broker.events import Handover
from zmqrl.bus_ends.learner_end import SegmentSource
from zmqrl.bus_ends.zmq_sink import ZmqSink
from zmqrl.messages.bus import HostReport, LearnerReport
from zmqrl.messages.frames import PROTOCOL, pack, pack_descriptors
from zmqrl.types import SegmentId, Version

pytestmark = pytest.mark.whole
WORKER = str(Path(__file__).parent / "worker_that_waits.py")
TURN_S = 0.05


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[RealBus]:
    held = RealBus(bus_plan("sync", workers=1, vector_envs=1, leases=2, slots=6), tmp_path)
    yield held
    held.close()


def write(sink: ZmqSink, index: int, incarnation: int = 0, rows: int = ROWS) -> None:
    segment = until(lambda: sink.open(0) or (sink.poll(TURN_S) and None), "a lease")
    segment.columns["obs"][...] = index
    sink.progress(0, rows)
    sink.seal(segment, SegmentId(0, incarnation, index), Version(0, index), rows)


def take(source: SegmentSource, count: int, *sinks: ZmqSink) -> list[int]:
    """Indexes of the next `count` segments, each with the payload that was written."""
    found: list[int] = []

    def turn() -> bool:
        for sink in sinks:
            sink.poll(0.0)
        for taken in source.take(TURN_S):
            assert (source.columns["obs"][taken.ref.slot] == taken.meta.id.index).all()
            found.append(taken.meta.id.index)
            source.release([taken.ref])
        return len(found) >= count

    until(turn, f"{count} segments")
    return found


def ready(sink: ZmqSink) -> None:
    until(lambda: sink.poll(TURN_S).streams, "assignments")


def test_a_worker_killed_in_a_segment_loses_its_unsealed_rows_and_no_more(bus: RealBus) -> None:
    source, channel = bus.learner()
    child = bus.start([WORKER], bus.boot("worker", inherit=True))
    assert child.stdout is not None and child.stdout.readline() == "stepping\n"
    (sealed,) = until(lambda: source.take(TURN_S), "the sealed segment")
    assert (sealed.meta.id, sealed.meta.rows) == (SegmentId(0, 0, 0), 8)
    bus.agent.report(HostReport("local", {0: 0}, [], [], [0], ""))
    bus.kill(child)
    bus.agent.report(HostReport("local", {}, [], [], [0], ""))
    until(lambda: source.take(TURN_S) or bus.arena.ledger().dropped["unsealed"], "the sweep")
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.dropped["unsealed"]) == (13, 8, 5)
    assert ledger.balanced

    successor = bus.sink(spawn=1)
    (request,) = until(
        lambda: successor.poll(TURN_S) and (source.take(TURN_S), channel.handover_requests())[1], "requested"
    )
    assert (request.vector_env, request.incarnation, request.next_index) == (0, 1, 1)
    assert channel.handover_requests() == [request], "requested again until answered"
    channel.answer(Handover(0, 1, 1, ()))
    (assignment,) = until(lambda: successor.poll(TURN_S).streams, "assignments")
    assert (assignment.incarnation, assignment.next_index, assignment.states) == (1, 1, ())
    write(successor, 1, incarnation=1)
    source.release([sealed.ref])
    assert take(source, 1, successor) == [1]
    assert bus.arena.ledger().balanced


def test_all_slots_of_a_killed_worker_come_back(bus: RealBus) -> None:
    source = bus.source()
    for spawn in range(5):
        sink = bus.sink(spawn=spawn)
        bus.agent.report(HostReport("local", {0: spawn}, [], [], [0], ""))
        until(lambda sink=sink: sink.poll(TURN_S) and sink.open(0), "a lease")
        sink._heartbeat.close()
        bus.agent.report(HostReport("local", {}, [], [], [0], ""))
    last = bus.sink(spawn=9)
    until(lambda: last.poll(TURN_S) and last.open(0), "a lease")
    del source


def test_a_lost_descriptor_is_sent_again(bus: RealBus, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = bus.source(), bus.sink()
    ready(sink)
    push, lost = sink._push, []
    monkeypatch.setattr(sink, "_push", lambda refs: lost.append(refs))
    write(sink, 0)
    write(sink, 1)
    sink.poll(0.0)
    assert lost
    assert source.take(TURN_S) == []
    monkeypatch.setattr(sink, "_push", push)
    assert take(source, 2, sink) == [0, 1]
    assert bus.arena.ledger().balanced


def test_a_restarted_learner_finds_what_was_accepted(bus: RealBus) -> None:
    first, sink = bus.source(), bus.sink()
    ready(sink)
    write(sink, 0)
    (held,) = until(lambda: sink.poll(0.0) and first.take(TURN_S), "a segment")
    first.close()
    write(sink, 1)
    write(sink, 2)
    until(lambda: sink.poll(TURN_S) and not sink._sealed, "accepted without a learner")
    assert take(bus.source(), 3, sink) == [0, 1, 2], "also the one that its predecessor held"
    assert held.meta.id.index == 0


def test_a_broker_killed_and_started_again_loses_and_doubles_nothing(bus: RealBus) -> None:
    source, sink = bus.source(), bus.sink()
    ready(sink)
    seen, index = [], 0
    for _ in range(3):
        for _ in range(4):
            write(sink, index)
            index += 1
            seen += take(source, 1, sink)
        until(lambda: sink.poll(TURN_S) and not sink._sealed and len(sink._free) == 2, "leases")
        bus.kill(bus.broker)
        for _ in range(2):
            write(sink, index)
            index += 1
        bus.broker = bus.start_broker()
        until(lambda: bus.arena.open_slots() == 0 or sink.poll(TURN_S), "a word")
        bus.agent.report(HostReport("local", {0: 0}, [], [], [0], ""))
        seen += take(source, 2, sink)
    assert seen == list(range(index))
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.balanced) == (index * ROWS, True)
    assert bus.arena.broker_incarnation == 4


def garbage() -> list[list[bytes]]:
    refs = pack_descriptors(0, 0, [])
    wild = pack_descriptors(0, 0, [(1 << 40, -5), (0, 1 << 60), (-1, 0)])  # type: ignore[list-item]
    sound = pack(LearnerReport(env_steps=1, updates=1))
    return [
        [b""],
        [b"\x81\x90\x00"],
        [b"\xc1" * 17],
        [b"x" * 100_000],
        [refs],
        [wild],
        [pack_descriptors(1 << 60, -1, [])],
        [sound, sound],
        [b"", b"", b""],
        [msgpack.packb([PROTOCOL, {"kind": "worker_exit", "index": 77, "spawn": 0}])],
        [msgpack.packb([PROTOCOL, {"kind": "broker_status", "broker": 1, "requests": [], "known": None}])],
        [msgpack.packb([PROTOCOL, {"kind": "answer", "part": [9, 9, 9, 40, 0, b"12345678"]}])],
        [msgpack.packb([2, "worker", {}])],
        [b"\x91" * 3000],
    ]


def test_unknown_peers_are_refused_and_counted_and_the_run_continues(bus: RealBus) -> None:
    source, sink = bus.source(), bus.sink()
    ready(sink)
    context: zmq.Context[Any] = zmq.Context()
    kinds = {"segments": zmq.PUSH, "control": zmq.DEALER, "notices": zmq.SUB}
    strangers = {name: context.socket(kind) for name, kind in kinds.items()}
    for name, stranger in strangers.items():
        stranger.connect(getattr(bus.endpoints, name))
    for parts in garbage():
        strangers["segments"].send_multipart(parts)
        strangers["control"].send_multipart(parts)
    strangers["notices"].setsockopt(zmq.SUBSCRIBE, b"\xff" * 500)
    for endpoint in (bus.endpoints.segments, bus.endpoints.descriptors, bus.endpoints.notices, bus.endpoints.control):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(endpoint.removeprefix("ipc://"))
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    for index in range(6):
        write(sink, index)
        assert take(source, 1, sink) == [index]
    context.destroy(linger=0)
    assert bus.broker.poll() is None
    bus.broker.send_signal(signal.SIGTERM)
    _, log = bus.broker.communicate(timeout=WAIT_S)
    assert bus.broker.returncode == 0, log
    assert "Traceback" not in log
    for reason in ("not msgpack", "frames", "protocol", "kind"):
        assert f"'{reason}'" in log, log
    assert bus.arena.ledger().balanced
