"""Ports are tried with real sockets: an echo server with a key, and who gets an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from msgspec import structs

from tests.support.waiting import WAIT_S
from zmqrl.doctor.reach import EchoServer, reach
from zmqrl.messages.doctor_requests import Listen, Reach
from zmqrl.wire.sockets import make_keys

LISTEN = Listen((0, 0, 0))


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    echo = EchoServer(LISTEN)
    yield echo
    echo.close()


def request(echo: EchoServer, limit_s: float = WAIT_S, **changed: object) -> Reach:
    listening = echo.listening()
    sent = Reach(("127.0.0.1",), listening.ports, listening.server, limit_s)
    return structs.replace(sent, **changed)


def test_all_ports_answer_who_knows_their_key(echo: EchoServer) -> None:
    (answer,) = reach(request(echo)).answers
    assert set(answer.ports.values()) == {None} and len(answer.ports) == 3
    assert answer.round_trip_ms is not None and 0 < answer.round_trip_ms < WAIT_S * 1000
    assert all(not address.startswith("127.") for address in echo.listening().addresses)


def test_a_peer_without_the_server_key_gets_no_answer(echo: EchoServer) -> None:
    (answer,) = reach(request(echo, 1.0, server=make_keys().public)).answers
    assert set(answer.ports.values()) == {"connected, but another program answers on this port"}
    assert answer.round_trip_ms is None


def test_each_port_of_each_address_is_reported_separately(echo: EchoServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: refused
        free = closed.getsockname()[1]
        ports = (*echo.listening().ports[:2], free)
        sent = request(echo, 2.0, addresses=("127.0.0.1", "256.1.1.1"), ports=ports)
        here, nowhere = reach(sent).answers
    assert here.ports == {str(ports[0]): None, str(ports[1]): None, str(free): "connection refused"}
    assert None not in nowhere.ports.values() and nowhere.round_trip_ms is None


def test_a_port_that_is_taken_is_reported_with_its_owner(echo: EchoServer) -> None:
    taken = echo.listening().ports[0]
    second = EchoServer(structs.replace(LISTEN, ports=(taken, 0, 0)))
    try:
        error = second.listening().error
        assert error is not None and error.startswith(f"port {taken}: Address already in use by pid ")
    finally:
        second.close()
    assert second.listening().ports == ()
