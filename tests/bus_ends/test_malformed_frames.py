"""Frames that a worker or the learner cannot read: counted, reported, and survived. A hand-made broker's sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bus_ends.event_pipe import EventPipe
from tests.shared_memory.bus_plans import bus_plan
from tests.support.waiting import WAIT_S
from zmqrl.bus_ends.zmq_learner import ZmqChannel, ZmqSource
from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.plan import Boot, Endpoints
from zmqrl.errors import WireError
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, pack_descriptors, unpack
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import SlotRef

ASSIGNMENTS: dict[str, Any] = {
    "spawn": 0,
    "broker": 1,
    "leases": [[0, 1], [1, 1]],
    "acked": [[0, 0, 0]],
    "serial": 1,
    "streams": [[0, 0, 0, None], [1, 1, 3, 9]],
    "stop": False,
}
RECORD = pack(bus.Record(spawn=0, parts=[[1, 1, 0, b"\x91\x93\x03"], [1, 1, 3, b"\xc0\xc2"]]))
BROKER_STATUS = pack(bus.BrokerStatus(broker=1, requests=[[0, 1, 2, 0]], known=[0, 3]))
GARBAGE = [
    b"",
    b"\xc1",
    b"x" * 5000,
    pack(bus.ShutdownNotice("over")),
    b"\x91" * 3000,
    pack(bus.WorkerAssignments(**ASSIGNMENTS))[:40],
]


class HandBroker:
    """Both ends of the bus over one arena, and the sockets that a broker would have."""

    def __init__(self, folder: Path) -> None:
        plan = bus_plan("sync", workers=1, vector_envs=2)
        self.arena = Arena.create(plan)
        self.arena.begin_broker()
        self.context: zmq.Context[Any] = zmq.Context()
        names = ("segments", "descriptors", "notices", "control")
        ends = Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})
        kinds = (zmq.PULL, zmq.PUSH, zmq.PUB, zmq.ROUTER)
        self.sockets = {name: self.context.socket(kind) for name, kind in zip(names, kinds, strict=True)}
        for name, socket in self.sockets.items():
            socket.bind(getattr(ends, name))
        self._events = EventPipe()
        assert self.arena.fd is not None
        fds = {"events": self._events.write_fd}
        learner = Boot("learner", 0, 0, "local", plan, ends, {**fds, "arena": os.dup(self.arena.fd)})
        self.channel = ZmqChannel(learner)
        self.source = ZmqSource(learner, self.channel)
        self.sink = LocalSink(Boot("worker", 0, 0, "local", plan, ends, {**fds, "arena": os.dup(self.arena.fd)}))

    def peer_of(self, kind: str) -> bytes:
        """Where the end that sends this kind of message is."""
        while True:
            self.sink.poll(0.0)
            self.source.take(0.0)
            assert self.sockets["control"].poll(WAIT_S * 1000), f"nobody sent {kind}"
            peer, frame = self.sockets["control"].recv_multipart()
            if bus.kind_of(unpack(frame)) == kind:
                return peer

    def refused(self) -> dict[str, int]:
        """The counts that were reported last."""
        events = self._events.read(WAIT_S)
        assert events, "nothing was reported"
        return dict([event["counts"] for event in events if event["event"] == "refused"][-1])

    def close(self) -> None:
        self.sink.close()
        self.source.close()
        self.channel.close()
        self.context.destroy(linger=0)
        self.arena.close()
        self._events.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HandBroker]:
    held = HandBroker(tmp_path)
    yield held
    held.close()


def test_a_worker_continues_under_garbage(broker: HandBroker) -> None:
    peer = broker.peer_of("worker")
    for frame in GARBAGE:
        broker.sockets["control"].send_multipart((peer, frame))
    broker.sockets["control"].send_multipart((peer, b"two", b"frames"))
    broker.sockets["control"].send_multipart(
        (peer, pack(bus.WorkerAssignments(**{**ASSIGNMENTS, "leases": [[1 << 40, 1]]})))
    )
    broker.sockets["control"].send_multipart(
        (peer, pack(bus.WorkerAssignments(**{**ASSIGNMENTS, "acked": [[99, 0, 0]]})))
    )
    broker.sockets["control"].send_multipart((peer, pack(bus.WorkerAssignments(**ASSIGNMENTS))))
    while not broker.sink.poll(WAIT_S).streams:
        pass
    assert broker.sink.open(0) is not None
    broker.sink.poll(0.2)
    assert broker.refused() == {"not msgpack": 6, "kind": 1, "value": 2}


def test_a_learner_continues_under_garbage(broker: HandBroker) -> None:
    peer = broker.peer_of("learner")
    for frame in GARBAGE:
        broker.sockets["control"].send_multipart((peer, frame))
        broker.sockets["descriptors"].send(frame)
    broker.sockets["control"].send_multipart(
        (peer, pack(bus.BrokerStatus(broker=1, requests=[[99, 1, 2, 0]], known=None)))
    )
    broker.sockets["control"].send_multipart((peer, BROKER_STATUS))
    while not broker.channel.handover_requests():
        broker.source.take(WAIT_S)
    assert [request.vector_env for request in broker.channel.handover_requests()] == [0]
    broker.source.take(0.2)
    counts = broker.refused()
    assert (counts["not msgpack"], counts["kind"], counts["value"], counts["descriptors"]) == (5, 1, 1, 6)


SOUND = {
    "assignments": pack(bus.WorkerAssignments(**ASSIGNMENTS)),
    "record": RECORD,
    "broker_status": BROKER_STATUS,
    "descriptors": pack_descriptors(1, 0, [SlotRef(0, 1), SlotRef(3, 7)]),
}
MUTATIONS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(SOUND)), MUTATIONS, st.integers(0, 1 << 16))
@pytest.mark.whole
def test_a_mutated_frame_is_taken_or_refused(
    broker: HandBroker, kind: str, mutations: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(SOUND[kind])
    for at, byte in mutations:
        frame[at % len(frame)] = byte
    changed = bytes(frame[: cut % len(frame) + 1] if cut % 3 == 0 else frame)
    hear = {
        "assignments": broker.sink._receive,
        "record": broker.sink._receive,
        "broker_status": broker.channel._receive,
        "descriptors": broker.source._receive_descriptors,
    }[kind]
    try:
        hear(changed)
    except WireError:
        pass
    broker.sink.poll(0.0)
    segment = broker.sink.open(0)
    if segment is not None:
        broker.sink.abandon(segment)
    broker.source.take(0.0)
    broker.channel.handover_requests()
