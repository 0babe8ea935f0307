"""Segments over another memory backend than the bus: received by a thread, bound to the host that sealed them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.broker.test_inbound import FAR as FAR_KEYS
from tests.broker.test_inbound import SERVER, BrokerWithPeers
from tests.broker.test_senders import segment
from tests.shared_memory.bus_plans import bus_plan
from tests.support.marks import at_once
from tests.support.waiting import WAIT_S, until
from zmqrl.broker import events as ev
from zmqrl.broker import segment_receiver
from zmqrl.broker.segment_receiver import MOST_WAITING, SegmentReceiver
from zmqrl.config.kinds import NO_KEYS
from zmqrl.errors import ConfigError, TransportError, WireError
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.memory_backends.seal import Opening, Sealing
from zmqrl.wire.sockets import bind, connect

LOCAL, FAR, MOST = 0, 1, 100


class Hand(MemoryBackend):
    """Gives what the test puts into it."""

    def __init__(self) -> None:
        super().__init__(NO_KEYS, bus_plan())
        self.next: list[Sequence[bytes]] | Exception = []
        self.closed_in: str | None = None
        self.calls = 0
        self.asked = threading.Event()

    def send(self, frames: Sequence[Any]) -> bool:
        raise NotImplementedError

    def receive(self, timeout_s: float) -> list[Sequence[bytes]]:
        given = self.next
        self.calls += 1
        self.asked.set()
        if isinstance(given, Exception):
            raise given
        self.next = []
        time.sleep(0.01)
        return given

    def close(self) -> None:
        self.closed_in = threading.current_thread().name


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def receiver(hand: Hand) -> Iterator[SegmentReceiver]:
    made = SegmentReceiver(hand)
    yield made
    made.close()


def received(receiver: SegmentReceiver) -> list[list[bytes]]:
    assert receiver.socket.poll(int(WAIT_S * 1000)), "nothing was received"
    return [[frame.bytes for frame in frames] for frames in receiver.receive(MOST)]


def test_messages_are_handed_to_the_loop_of_the_broker(hand: Hand, receiver: SegmentReceiver) -> None:
    hand.next = [[b"a", b"b" * 100_000], [], [b"c"]]
    found = received(receiver)
    while len(found) < 2:
        found += received(receiver)
    assert found == [[b"a", b"b" * 100_000], [b"c"]]


def test_a_busy_broker_leaves_the_rest_at_the_carrier(hand: Hand) -> None:
    """Messages are held in memory up to a bound, none is lost, and the thread ends although there is no room."""
    receiver = SegmentReceiver(hand)
    try:
        hand.next = [[b"%d" % number] for number in range(3 * MOST_WAITING)]
        until(lambda: hand.next == [] and receiver.socket.poll(0))
        hand.next = [[b"later"]]
        hand.asked.clear()
        assert not hand.asked.wait(0.3), "nothing is received while there is no room"
        found = [frames[0].bytes for frames in receiver.receive(1)]
        until(lambda: found.extend(f[0].bytes for f in receiver.receive(MOST)) or found[-1] == b"later")
        assert found == [*(b"%d" % number for number in range(3 * MOST_WAITING)), b"later"]
        hand.next = [[b"more"] for _ in range(3 * MOST_WAITING)]
        until(lambda: hand.next == [])
    finally:
        receiver.close()
    assert hand.closed_in is not None


def test_a_carrier_that_is_away_is_tried_again(hand: Hand, receiver: SegmentReceiver) -> None:
    hand.next = TransportError("it is away")
    until(lambda: receiver.away == "it is away")
    hand.next = [[b"again"]]
    assert received(receiver) == [[b"again"]]
    assert receiver.away is None


@at_once
def test_a_carrier_that_is_away_is_left_alone_for_a_while(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_receiver, "RETRY_S", 3600.0)
    monkeypatch.setattr(segment_receiver, "JOIN_S", 3600.0)
    hand.next = TransportError("it is away")
    receiver = SegmentReceiver(hand)
    until(lambda: receiver.away)
    receiver.close()
    assert hand.calls == 1


@pytest.mark.parametrize("error", [ConfigError("wrong password"), ValueError("a defect of the backend")])
def test_any_other_error_ends_the_broker(hand: Hand, receiver: SegmentReceiver, error: Exception) -> None:
    hand.next = error

    def look() -> bool:
        receiver.receive(MOST)
        return False

    with pytest.raises(type(error), match=str(error)):
        until(look)


@at_once
def test_it_ends_in_time_and_closes_the_backend_in_its_thread(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_receiver, "JOIN_S", 3600.0)
    receiver = SegmentReceiver(hand)
    receiver.close()
    assert hand.closed_in == "memory-backend"


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[BrokerWithPeers]:
    made = BrokerWithPeers(tmp_path)
    yield made
    made.close()


def frames_of(message: Sequence[Any]) -> list[zmq.Frame]:
    """As a socket gives them."""
    context: zmq.Context[Any] = zmq.Context()
    pull = bind(context, zmq.PULL, "inproc://frames")
    push = connect(context, zmq.PUSH, "inproc://frames")
    push.send_multipart(message)
    found = pull.recv_multipart(copy=False)
    context.destroy(linger=0)
    return list(found)


def test_a_forwarded_segment_is_bound_to_the_host_that_sealed_it(peers: BrokerWithPeers) -> None:
    run_id = peers.plan.run_id
    peers.inbound._opening = Opening(run_id, SERVER, peers.sockets.admission)
    sealing = Sealing(run_id, FAR_KEYS)
    event = peers.inbound.on_forwarded(frames_of(sealing.seal(segment(peers, FAR))))
    assert isinstance(event, ev.Delivered) and event.index == FAR
    for message, reason in (
        (sealing.seal(segment(peers, LOCAL)), "host"),
        (Sealing(run_id, None).seal(segment(peers, FAR)), "unknown key"),
        (sealing.seal([]), "segment"),
        (sealing.seal(segment(peers, FAR)[:1]), "frames"),
        (segment(peers, FAR), "wrong seal"),
    ):
        with pytest.raises(WireError) as refusal:
            peers.inbound.on_forwarded(frames_of(message))
        assert refusal.value.reason == reason
