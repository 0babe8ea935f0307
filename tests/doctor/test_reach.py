"""Ports are tried with real sockets: a door with a lock, and who gets in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq
from msgspec import structs

from zmqrl.doctor.reach import Door, reach
from zmqrl.messages.doctor import Listen, Reach

SERVER, HOST, STRANGER = (tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(3))
LISTEN = Listen((0, 0, 0), SERVER[0], SERVER[1], {HOST[0]: "node07"})


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(LISTEN)
    yield door
    door.close()


def order(door: Door, limit_s: float = 5.0, **changed: object) -> Reach:
    asked = Reach(("127.0.0.1",), door.listening().ports, SERVER[0], HOST[0], HOST[1], limit_s)
    return structs.replace(asked, **changed)


def test_all_ports_answer_who_has_a_key(door: Door) -> None:
    (answer,) = reach(order(door)).answers
    assert set(answer.ports.values()) == {None} and len(answer.ports) == 3
    assert answer.round_trip_ms is not None and 0 < answer.round_trip_ms < 500
    assert all(not address.startswith("127.") for address in door.listening().addresses)


@pytest.mark.parametrize(
    "keys",
    [{"public": STRANGER[0], "secret": STRANGER[1]}, {"server_public": STRANGER[0]}],
    ids=["no key", "no server"],
)
def test_without_the_right_keys_nothing_answers(door: Door, keys: dict[str, str]) -> None:
    (answer,) = reach(order(door, 1.0, **keys)).answers
    assert set(answer.ports.values()) == {"connected, but another program answers on this port"}
    assert answer.round_trip_ms is None


def test_each_port_of_each_address_is_told_apart(door: Door) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: refused
        free = closed.getsockname()[1]
        ports = (*door.listening().ports[:2], free)
        asked = order(door, 2.0, addresses=("127.0.0.1", "256.1.1.1"), ports=ports)
        here, nowhere = reach(asked).answers
    assert here.ports == {str(ports[0]): None, str(ports[1]): None, str(free): "connection refused"}
    assert None not in nowhere.ports.values() and nowhere.round_trip_ms is None


def test_a_port_that_is_taken_is_said_with_its_owner(door: Door) -> None:
    taken = door.listening().ports[0]
    second = Door(structs.replace(LISTEN, ports=(taken, 0, 0)))
    try:
        error = second.listening().error
        assert error is not None and error.startswith(f"port {taken}: Address already in use by pid ")
    finally:
        second.close()
    assert second.listening().ports == ()
