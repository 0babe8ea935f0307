"""Which address leads to the broker, among ports that are closed, silent, or somebody else's."""

from __future__ import annotations

import socket as plain
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.support.marks import at_once
from tests.support.waiting import WAIT_S
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.config.codec import replace
from zmqrl.config.plan import Endpoints, TcpListen
from zmqrl.errors import DeadlineExceeded
from zmqrl.messages import bus
from zmqrl.messages.command import Join
from zmqrl.messages.frames import pack, unpack
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.probe import Unanswered, first_answering
from zmqrl.wire.sockets import make_keys

SERVER, B, STRANGER = make_keys(), make_keys(), make_keys()
FAR = replace(B, server=SERVER.public)
ALLOWED = AllowList(1, {B.public: HostKey("b", 1)})


def join_at(*addresses: str, port: int) -> Join:
    return Join(list(addresses), (1, 2, port), None, SERVER.public, None)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a broker on 127.0.0.1 that answers every report, in a thread of its own."""
    found: list[int] = []
    bound, end = threading.Event(), threading.Event()

    def serve() -> None:
        names = ("segments", "descriptors", "notices", "control")
        ends = Endpoints(**{name: f"ipc://{tmp_path}/{name}" for name in names})
        sockets = BrokerSockets(ends, TcpListen("127.0.0.1"), SERVER, ALLOWED)
        found.append(sockets.ports[2])
        bound.set()
        poller = zmq.Poller()
        for source in (*sockets.guards, sockets.control):
            poller.register(source, zmq.POLLIN)
        while not end.is_set():
            poller.poll(20)
            sockets.guard()
            while sockets.control.poll(0):
                peer, said = sockets.control.recv_multipart()
                message = unpack(said)
                if isinstance(message, bus.PathProbe):
                    sockets.control.send_multipart([peer, said])
                    continue
                assert message == bus.HostReport("b", {}, [], [], [], "")
                sockets.control.send_multipart([peer, pack(bus.Welcome(broker=1, hanging=[]))])
        sockets.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert bound.wait(WAIT_S)
    yield found[0]
    end.set()
    thread.join(WAIT_S)


def test_the_right_one_of_several_answers(port: int) -> None:
    with plain.create_server(("127.0.0.3", port)):  # takes connections, and never says a word
        reached = first_answering(join_at("127.0.0.2", "127.0.0.3", "127.0.0.1", port=port), "b", FAR, WAIT_S)
    assert reached.address == "127.0.0.1"
    assert 0 < reached.milliseconds < WAIT_S * 1000


def test_none_answers_and_each_is_named(port: int) -> None:
    with plain.create_server(("127.0.0.3", port)), pytest.raises(DeadlineExceeded) as failed:
        first_answering(join_at("127.0.0.2", "127.0.0.3", port=port), "b", FAR, 0.5)
    said = str(failed.value)
    assert f"port {port}" in said
    assert "127.0.0.2: Connection refused" in said
    assert "127.0.0.3: connected, but not a broker of this run" in said


@pytest.mark.parametrize(("address", "accepts"), [("127.0.0.2", False), ("127.0.0.3", True)])
def test_an_address_that_accepts_connections_may_be_a_broker_without_a_free_core(
    port: int, address: str, accepts: bool
) -> None:
    with plain.create_server(("127.0.0.3", port)), pytest.raises(Unanswered) as failed:
        first_answering(join_at(address, port=port), "b", FAR, 0.2)
    assert failed.value.accepts is accepts


def test_a_broker_that_does_not_know_our_key_is_none(port: int) -> None:
    with pytest.raises(DeadlineExceeded, match="the key was rejected"):
        first_answering(join_at("127.0.0.1", port=port), "b", replace(STRANGER, server=SERVER.public), 0.5)


@at_once
def test_no_address_at_all() -> None:
    with pytest.raises(DeadlineExceeded, match="no address"):
        first_answering(join_at(port=3), "b", None, 3600.0)
