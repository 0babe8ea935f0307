"""Who gets in over tcp, with real sockets, and who is refused and counted."""

from __future__ import annotations

import socket as plain
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from zmqrl.broker.doors import Doors
from zmqrl.config.plan import Endpoints, Keys, Listen
from zmqrl.errors import ConfigError
from zmqrl.wire.gate import UNNAMED, user_of
from zmqrl.wire.sockets import connect

WAIT_S = 5.0
LOOPBACK = Listen("127.0.0.1")


def pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


SERVER, B, STRANGER = pair(), pair(), pair()
KEYS = Keys(SERVER[0], server_secret=SERVER[1], allowed={B[0]: "b"})


def endpoints(folder: Path) -> Endpoints:
    names = ("segments", "descriptors", "notices", "control")
    return Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    held = Doors(endpoints(tmp_path), LOOPBACK, KEYS)
    yield held
    held.close()


Dial = Callable[..., zmq.Socket[Any]]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """`dial(endpoint, keys)`: a DEALER, closed at the end."""
    context: zmq.Context[Any] = zmq.Context()
    held: list[zmq.Socket[Any]] = []

    def dialled(endpoint: str, keys: Keys | None = None) -> zmq.Socket[Any]:
        held.append(connect(context, zmq.DEALER, endpoint, keys))
        return held[-1]

    yield dialled
    context.destroy(linger=0)


def turn(doors: Doors, until: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    poller = zmq.Poller()
    for source in (*doors.guards, doors.control):
        poller.register(source, zmq.POLLIN)
    while not (found := until()):
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {doors.guard()}"
        poller.poll(20)
        doors.guard()
    return found


def heard(doors: Doors) -> tuple[str | None, bytes] | None:
    if not doors.control.poll(0):
        return None
    frames = doors.control.recv_multipart(copy=False)
    return user_of(frames[-1]), frames[-1].bytes


def tcp(doors: Doors) -> str:
    return f"tcp://127.0.0.1:{doors.ports[2]}"


def test_an_allowed_key_gets_in_and_its_messages_carry_the_hosts_name(doors: Doors, dial: Dial, tmp_path: Path) -> None:
    dial(tcp(doors), Keys(SERVER[0], *B)).send(b"far")
    assert turn(doors, lambda: heard(doors)) == ("b", b"far")
    dial(f"ipc://{tmp_path}/control").send(b"near")
    assert turn(doors, lambda: heard(doors)) == (None, b"near")
    assert not doors.guard()


@pytest.mark.parametrize(("keys", "reason"), [
    (Keys(SERVER[0], *STRANGER), "unknown key"),
    (Keys(STRANGER[0], *B), "handshake"),
    (None, "handshake"),
], ids=["a stranger's key", "another server's key", "no key"])  # fmt: skip
def test_others_are_refused_and_counted(doors: Doors, dial: Dial, tmp_path: Path, keys: Any, reason: str) -> None:
    stranger = dial(tcp(doors), keys)
    stranger.send(b"stranger")
    turn(doors, lambda: any(reason in known for known in doors.guard()))
    dial(f"ipc://{tmp_path}/control").send(b"near")
    assert turn(doors, lambda: heard(doors)) == (None, b"near")
    assert heard(doors) is None, "the stranger was never heard"


def test_noise_is_closed_on_and_nothing_else_happens(doors: Doors, dial: Dial) -> None:
    with plain.create_connection(("127.0.0.1", doors.ports[2]), WAIT_S) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        noise.setblocking(False)
        turn(doors, lambda: is_closed(noise))
    dial(tcp(doors), Keys(SERVER[0], *B)).send(b"far")
    assert turn(doors, lambda: heard(doors)) == ("b", b"far")


def test_who_says_nothing_and_goes_is_counted(doors: Doors) -> None:
    plain.create_connection(("127.0.0.1", doors.ports[2]), WAIT_S).close()
    assert turn(doors, lambda: doors.guard()) == {"no handshake": 1}


def is_closed(noise: plain.socket) -> bool:
    try:
        while noise.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_taken_port_names_its_setting(tmp_path: Path) -> None:
    with plain.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"learner.port, port {port} of 127.0.0.1") as refused:
            Doors(endpoints(tmp_path), Listen("127.0.0.1", (0, port, 0)), KEYS)
    assert refused.value.exit_code == 2


def test_without_keys_nothing_that_others_reach_is_bound(tmp_path: Path) -> None:
    with plain.create_server(("", 0)) as holder:  # who tried to bind it would hear that it is taken
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on tcp://\*:{port}: no keys") as refused:
            Doors(endpoints(tmp_path), Listen("*", (port, 0, 0)), None)
    assert refused.value.exit_code == 2
    assert "zmqrl launch" in str(refused.value), "what mends it"


def test_without_keys_loopback_is_bound(tmp_path: Path, dial: Dial) -> None:
    doors = Doors(endpoints(tmp_path), LOOPBACK, None)
    try:
        dial(tcp(doors)).send(b"here")
        assert turn(doors, lambda: heard(doors)) == (UNNAMED, b"here")
    finally:
        doors.close()
