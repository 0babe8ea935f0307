"""Reverse tunnels: ports on another host's loopback that lead to places which this machine reaches."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from zmqrl.ssh.channel import SshStream
from zmqrl.ssh.refusals import no_tunnel

if TYPE_CHECKING:
    import paramiko

Place: TypeAlias = tuple[str, int]
"""Address and port, as this machine sees them."""
CHUNK = 65536
CONNECT_S = 10.0
KNOWN_S = 5.0


class Tunnels:
    """All reverse tunnels of one connection: ssh has one handler for them."""

    def __init__(self, host: str, transport: paramiko.Transport) -> None:
        self._host, self._transport = host, transport
        self._leads_to: dict[int, Sequence[Place]] = {}
        self._answers: set[str] = set()
        """Addresses that have answered."""
        self._known = threading.Condition()
        self._asking = threading.Lock()

    def open(self, to: Sequence[Place]) -> int:
        """A new port on the remote loopback, which leads to the first of `to` that answers.

        HostFailed when the remote sshd forwards nothing.
        """
        import paramiko

        try:
            with self._asking:
                port = self._transport.request_port_forward("127.0.0.1", 0, self._arrived)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise no_tunnel(self._host, str(error)) from error
        with self._known:
            self._leads_to[port] = to
            self._known.notify_all()
        return port

    def _arrived(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        """Called in the connection's own thread, which must continue."""
        threading.Thread(
            target=self._carry, args=(channel, server[1]), name=f"{self._host} tunnel", daemon=True
        ).start()

    def _carry(self, channel: paramiko.Channel, port: int) -> None:
        with contextlib.closing(channel):
            with self._known:  # the first may arrive before `open` has received the port
                if not self._known.wait_for(lambda: port in self._leads_to, KNOWN_S):
                    return
                to = self._leads_to[port]
            near = self._connected(to)
            if near is None:
                return  # closing the channel reports to the remote side that no process is here
            with near:
                near.settimeout(None)
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                outward = threading.Thread(target=pump_out, args=(near, channel), daemon=True)
                outward.start()
                _pump_in(channel, near)
                outward.join()

    def _connected(self, to: Sequence[Place]) -> socket.socket | None:
        """To the first place that answers; those that have answered before come first."""
        for address, port in sorted(to, key=lambda place: place[0] not in self._answers):
            with contextlib.suppress(OSError):
                near = socket.create_connection((address, port), CONNECT_S / len(to) ** 2)
                self._answers.add(address)
                return near
        return None


def pump_out(near: socket.socket, channel: SshStream) -> None:
    """What a socket of this machine sends, until its end."""
    with contextlib.suppress(OSError, EOFError):
        while data := near.recv(CHUNK):
            channel.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


def _pump_in(channel: paramiko.Channel, near: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(CHUNK):
            near.sendall(data)
    with contextlib.suppress(OSError):
        # the remote side wrote its last byte; when the whole connection is gone, so is the reader of our answer
        near.shutdown(socket.SHUT_RDWR if channel.closed else socket.SHUT_WR)
