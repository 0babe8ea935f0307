"""The transport to a host before the login: a TCP connection, a channel of a jump host, or a ProxyCommand."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from zmqrl.errors import HostFailed
from zmqrl.ssh import refusals
from zmqrl.ssh.config import Target

if TYPE_CHECKING:
    import paramiko

END_S = 2.0


class SshTransport(ABC):
    """What carries an ssh session. `stream` is handed to paramiko; `close` ends the rest, after the session's end."""

    stream: socket.socket | paramiko.Channel

    @abstractmethod
    def close(self) -> None:
        """End it; may be called twice."""

    def stderr_tail(self) -> str:
        """What a helper process had to say, for messages."""
        return ""


class Direct(SshTransport):
    """A TCP connection of our own."""

    stream: socket.socket

    def __init__(self, target: Target, timeout_s: float, silence_s: float) -> None:
        """`silence_s`: a peer that acknowledges nothing for so long is dead; its connection then ends here too."""
        self._silence_s = silence_s
        try:
            addresses = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)  # without the number of the error
            raise refusals.unknown_name(target, why) from error
        self.stream = self._connect(target, addresses, timeout_s)

    def _connect(self, target: Target, addresses: list, timeout_s: float) -> socket.socket:  # type: ignore[type-arg]
        """The first address that answers; each has its share of the time, so that a silent one hides no other."""
        first: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            with contextlib.ExitStack() as undo:
                try:
                    connection = undo.enter_context(socket.socket(family, kind, protocol))
                    connection.settimeout(timeout_s / len(addresses))
                    connection.connect(address)
                    _notice_death(connection, self._silence_s)
                    undo.pop_all()
                    return connection
                except OSError as error:
                    first = first or error
        assert first is not None
        raise _unreachable(target, first, timeout_s) from first

    def close(self) -> None:
        self.stream.close()


class JumpTransport(SshTransport):
    """A channel of a connection to the host before this one."""

    def __init__(self, target: Target, gateway: paramiko.Transport, timeout_s: float) -> None:
        import paramiko

        assert target.jump is not None
        try:
            self.stream = gateway.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            code = error.code if isinstance(error, paramiko.ChannelException) else None
            why = refusals.FORWARDING_DISABLED if code == 1 else str(error) or "connection closed"
            raise refusals.not_forwarded(target, target.jump, why) from error

    def close(self) -> None:
        self.stream.close()


class Proxied(SshTransport):
    """A command of the user's that carries the bytes on its stdin and stdout. It ends with its stdin, or is killed."""

    def __init__(self, command: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  held as long as the command runs
        self.stream, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=inner.fileno(),
                stdout=inner.fileno(),
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C in the terminal ends the run over this connection, not the connection
            )

    def stderr_tail(self) -> str:
        with contextlib.suppress(ValueError):
            self._errors.seek(0)
            return self._errors.read(2000).decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        self.stream.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_S)
        self._errors.close()


def _notice_death(connection: socket.socket, silence_s: float) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1e3))


def _unreachable(target: Target, error: OSError, timeout_s: float) -> HostFailed:
    if isinstance(error, ConnectionRefusedError):
        return refusals.connection_refused(target)
    if isinstance(error, TimeoutError):
        return refusals.no_answer(target, timeout_s)
    return refusals.not_reachable(target, str(error.strerror))
