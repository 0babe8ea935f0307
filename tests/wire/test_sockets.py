"""Sockets: nothing blocks, nothing lingers, liveness and flow control are ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.support.waiting import WAIT_S
from zmqrl.wire.sockets import HIGH_WATER_MARK, RECONNECT_MAX_IPC_MS, bind, connect, drain, drain_frames, send

WAIT_MS = int(WAIT_S * 1000)


Make = Callable[[Callable[..., zmq.Socket[Any]], int], zmq.Socket[Any]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make(bind, zmq.PULL)`: a socket at this test's endpoint, closed at its end."""
    context: zmq.Context[Any] = zmq.Context()
    held: list[zmq.Socket[Any]] = []

    def made(by: Callable[..., zmq.Socket[Any]], kind: int) -> zmq.Socket[Any]:
        held.append(by(context, kind, f"ipc://{tmp_path}/s"))
        return held[-1]

    yield made
    context.destroy(linger=0)


def test_sending_without_peer_is_false_and_at_once(make: Make) -> None:
    """So often that half a second each would be minutes."""
    push, begun = make(bind, zmq.PUSH), time.monotonic()
    assert not any(send(push, b"x") for _ in range(400))
    assert time.monotonic() - begun < WAIT_S / 2


def test_a_binding_end_that_is_away_for_a_while_is_found_at_once_on_this_host(make: Make) -> None:
    """A broker that is started again is away for about as long."""
    push = make(connect, zmq.PUSH)
    with push.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED) as retries:
        waits_ms = [recv_monitor_message(retries)["value"] for _ in range(10) if retries.poll(WAIT_MS)]
        push.disable_monitor()
    assert len(waits_ms) == 10 and max(waits_ms) <= 2 * RECONNECT_MAX_IPC_MS, "half a second doubles them five times"
    pull = make(bind, zmq.PULL)
    assert push.poll(WAIT_MS, zmq.POLLOUT) and send(push, b"x")
    assert pull.poll(WAIT_MS)


class _CutSocket(zmq.Socket[bytes]):
    """Reports a message whose connection is cut before it is received, as a wire that loses packets has shown."""

    def get(self, option: int) -> int | bytes:
        return int(zmq.POLLIN) if option == zmq.EVENTS else super().get(option)


@pytest.mark.parametrize("receive", [drain, lambda socket: drain_frames(socket, 8)])
def test_a_message_that_is_gone_before_it_is_received_is_none(receive: Callable[[zmq.Socket[Any]], list[Any]]) -> None:
    with zmq.Context() as context, _CutSocket(context, zmq.PULL) as socket:
        assert receive(socket) == []


def test_drain_takes_all_there_is_and_marks_what_has_more_frames(make: Make) -> None:
    pull, push = make(bind, zmq.PULL), make(connect, zmq.PUSH)
    assert drain(pull) == []
    assert send(push, b"one")
    push.send_multipart([b"two", b"frames"])
    assert send(push, b"three")
    got: list[bytes] = []
    while len(got) < 3:
        assert pull.poll(WAIT_MS)
        got += drain(pull)
    assert got == [b"one", b"", b"three"]


def test_our_liveness_and_flow_control_are_not_zeromqs(make: Make) -> None:
    socket = make(bind, zmq.ROUTER)
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) <= 0
    assert socket.getsockopt(zmq.LINGER) == 0
    assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == HIGH_WATER_MARK
    assert socket.getsockopt(zmq.MAXMSGSIZE) > 0
