"""A port of this machine that leads to one of a host, here without SSH."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading

import pytest

from tests.support.waiting import WAIT_S
from zmqrl.ssh.forward import PortForward


class SocketStream(socket.socket):
    """An `SshStream` to a port of this machine."""

    def shutdown_write(self) -> None:
        self.shutdown(socket.SHUT_WR)


def opened(port: int) -> SocketStream:
    stream = SocketStream()
    stream.connect(("127.0.0.1", port))
    return stream


def test_a_connection_that_fails_does_not_end_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no further file for a moment, then no further thread: the first connection alone is lost."""
    faults: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
    accept, start = socket.socket.accept, threading.Thread.start

    def faulty_accept(listener: socket.socket) -> tuple[socket.socket, object]:
        if len(faults) == 2:
            raise faults.pop(0)
        return accept(listener)

    def faulty_start(thread: threading.Thread) -> None:
        if thread.name == "forwarded" and faults:
            raise faults.pop(0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", faulty_start)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(socket.socket, "accept", faulty_accept)
        with contextlib.closing(PortForward("h1", opened, port)) as forward:
            place = ("127.0.0.1", forward.port)
            with socket.create_connection(place, WAIT_S) as lost:
                assert lost.recv(1) == b"" and not faults
            with socket.create_connection(place, WAIT_S) as near:
                near.sendall(b"a")
                near.shutdown(socket.SHUT_WR)
                assert [received(server) for _ in ("the trial of the start", "the second connection")] == [b"", b"a"]


def received(server: socket.socket) -> bytes:
    far, _ = server.accept()
    with far:
        return far.recv(1)
