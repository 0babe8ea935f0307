"""Who gets in over tcp, with real sockets, and who is refused and counted."""

from __future__ import annotations

import socket as plain
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.config.codec import replace
from zmqrl.config.plan import Endpoints, Keys, TcpListen
from zmqrl.errors import ConfigError, WireError
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.gate import UNNAMED
from zmqrl.wire.sockets import connect, make_keys

LOOPBACK = TcpListen("127.0.0.1")


SERVER, B, STRANGER = make_keys(), make_keys(), make_keys()
FAR = replace(B, server=SERVER.public)
ALLOWED = AllowList(1, {B.public: HostKey("b", 1)})
WITHDRAWN = AllowList(2)
TOKENS = AllowList(1, {B.public: HostKey("b", 1)}, {"0" * 64: "c"})


def endpoints(folder: Path) -> Endpoints:
    names = ("segments", "descriptors", "notices", "control")
    return Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[BrokerSockets]:
    held = BrokerSockets(endpoints(tmp_path), LOOPBACK, SERVER, ALLOWED)
    yield held
    held.close()


Dial = Callable[..., zmq.Socket[Any]]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """`dial(endpoint, keys)`: a DEALER, or another kind; closed at the end."""
    context: zmq.Context[Any] = zmq.Context()
    held: list[zmq.Socket[Any]] = []

    def dialled(endpoint: str, keys: Keys | None = None, kind: int = zmq.DEALER) -> zmq.Socket[Any]:
        held.append(connect(context, kind, endpoint, keys))
        return held[-1]

    yield dialled
    context.destroy(linger=0)


def turn(sockets: BrokerSockets, until: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    deadline = time.monotonic() + wait_s
    poller = zmq.Poller()
    for source in (*sockets.guards, sockets.control):
        poller.register(source, zmq.POLLIN)
    while not (found := until()):
        assert time.monotonic() < deadline, f"not within {wait_s} s: {sockets.guard()}"
        poller.poll(20)
        sockets.guard()
    return found


def received(sockets: BrokerSockets) -> tuple[str | None, bytes] | None:
    if not sockets.control.poll(0):
        return None
    frames = sockets.control.recv_multipart(copy=False)
    return sockets.host_of(frames[-1]), frames[-1].bytes


def tcp(sockets: BrokerSockets) -> str:
    return f"tcp://127.0.0.1:{sockets.ports[2]}"


def test_an_allowed_key_gets_in_and_its_messages_carry_the_hosts_name(
    sockets: BrokerSockets, dial: Dial, tmp_path: Path
) -> None:
    dial(tcp(sockets), FAR).send(b"far")
    assert turn(sockets, lambda: received(sockets)) == ("b", b"far")
    dial(f"ipc://{tmp_path}/control").send(b"near")
    assert turn(sockets, lambda: received(sockets)) == (None, b"near")
    assert not sockets.guard()


@pytest.mark.parametrize(("keys", "reason"), [
    (replace(STRANGER, server=SERVER.public), "unknown key"),
    (replace(B, server=STRANGER.public), "handshake"),
    (None, "handshake"),
], ids=["a stranger's key", "another server's key", "no key"])  # fmt: skip
def test_others_are_refused_and_counted(
    sockets: BrokerSockets, dial: Dial, tmp_path: Path, keys: Any, reason: str
) -> None:
    stranger = dial(tcp(sockets), keys)
    stranger.send(b"stranger")
    turn(sockets, lambda: any(reason in known for known in sockets.guard()))
    dial(f"ipc://{tmp_path}/control").send(b"near")
    assert turn(sockets, lambda: received(sockets)) == (None, b"near")
    assert received(sockets) is None, "the stranger was never heard"


def test_a_connection_outlives_its_key_and_every_message_of_it_is_refused(sockets: BrokerSockets, dial: Dial) -> None:
    far = dial(tcp(sockets), FAR)
    far.send(b"one")
    assert turn(sockets, lambda: received(sockets)) == ("b", b"one")
    assert sockets.admission.replace(WITHDRAWN)
    far.send(b"two")
    with raises(WireError, reason="unknown key"):
        turn(sockets, lambda: received(sockets))
    dial(tcp(sockets), FAR).send(b"three")
    turn(sockets, lambda: sockets.guard()["unknown key"])
    assert received(sockets) is None, "and its key opens no further connection"


def test_a_key_that_is_allowed_later_gets_in_with_the_same_socket(
    tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.wire.sockets.HANDSHAKE_MS", 500)
    sockets = BrokerSockets(endpoints(tmp_path), LOOPBACK, SERVER)
    try:
        dial(tcp(sockets), FAR).send(b"early")
        turn(sockets, lambda: sockets.guard()["unknown key"])
        assert sockets.admission.replace(ALLOWED)
        assert turn(sockets, lambda: received(sockets)) == ("b", b"early")
    finally:
        sockets.close()


def test_with_tokens_unknown_keys_reach_control_alone_and_are_no_host(tmp_path: Path, dial: Dial) -> None:
    sockets = BrokerSockets(endpoints(tmp_path), LOOPBACK, SERVER, TOKENS)
    try:
        keys = replace(STRANGER, server=SERVER.public)
        dial(tcp(sockets), keys).send(b"stranger")
        with raises(WireError, reason="unknown key"):
            turn(sockets, lambda: received(sockets))
        assert not sockets.guard()
        segments, notices, _ = sockets.ports
        dial(f"tcp://127.0.0.1:{segments}", keys, zmq.PUSH)
        assert turn(sockets, lambda: sockets.guard()) == {"unknown key": 1}
        dial(f"tcp://127.0.0.1:{notices}", keys, zmq.SUB)
        turn(sockets, lambda: sockets.guard()["unknown key"] == 2)
    finally:
        sockets.close()


def test_noise_is_closed_on_and_nothing_else_happens(sockets: BrokerSockets, dial: Dial) -> None:
    with plain.create_connection(("127.0.0.1", sockets.ports[2]), WAIT_S) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        noise.setblocking(False)
        turn(sockets, lambda: is_closed(noise))
    dial(tcp(sockets), FAR).send(b"far")
    assert turn(sockets, lambda: received(sockets)) == ("b", b"far")


def test_a_peer_that_closes_silently_is_counted(sockets: BrokerSockets) -> None:
    plain.create_connection(("127.0.0.1", sockets.ports[2]), WAIT_S).close()
    assert turn(sockets, lambda: sockets.guard()) == {"no handshake": 1}


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
        with raises(ConfigError, key=("learner", "port"), value=str(port), fix="set another port, or auto") as refused:
            BrokerSockets(endpoints(tmp_path), TcpListen("127.0.0.1", (0, port, 0)), SERVER)
    assert refused.value.exit_code == 2


def test_without_keys_nothing_that_others_reach_is_bound(tmp_path: Path) -> None:
    with plain.create_server(("", 0)) as holder:  # who tried to bind it would hear that it is taken
        port = holder.getsockname()[1]
        with raises(
            ConfigError, key=(), value=f"tcp://*:{port}", what="without keys any peer could connect"
        ) as refused:
            BrokerSockets(endpoints(tmp_path), TcpListen("*", (port, 0, 0)), None)
    assert refused.value.exit_code == 2
    assert "zmqrl launch" in str(refused.value), "what mends it"


def test_without_keys_loopback_is_bound(tmp_path: Path, dial: Dial) -> None:
    sockets = BrokerSockets(endpoints(tmp_path), LOOPBACK, None)
    try:
        dial(tcp(sockets)).send(b"here")
        assert turn(sockets, lambda: received(sockets)) == (UNNAMED, b"here")
    finally:
        sockets.close()
