"""The control socket of an ssh master: sessions and tunnels over its connection (PROTOCOL.mux of OpenSSH, version 4).

A master with ControlPersist ends on its own when no control socket has been open for that long. The kernel closes
those of a process that dies.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import math
import select
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zmqrl.ssh.channel import SessionFailed, SessionRefused

VERSION = 4
HELLO = 0x00000001
NEW_SESSION, ALIVE_CHECK, TERMINATE, OPEN_FORWARD, CLOSE_FORWARD = (0x10000000 + kind for kind in (2, 4, 5, 6, 7))
OK, DENIED, FAILURE, EXIT_MESSAGE, ALIVE, SESSION_OPENED, REMOTE_PORT = range(0x80000001, 0x80000008)
STDIO_FORWARD = 0x10000008
"""A connection to a port there, as of `ssh -W`."""
REMOTE = 2
"""The forwarding type of `ssh -R`."""
NO_ESCAPE = 0xFFFFFFFF
MOST_BYTES = 256 * 1024
"""Limit of the size of a message from a master."""
END_S = 2.0


class MuxError(OSError):
    """The master refused, or does not answer."""


class Message(NamedTuple):
    """Message from a master. `body` follows kind and number."""

    kind: int
    number: int
    """Number of the request that the message answers; in an exit message, of the session."""
    body: bytes

    @property
    def integer(self) -> int:
        """The first field of the body. MuxError when it has none."""
        if len(self.body) < 4:
            raise MuxError("the ssh master sent a malformed message")
        return int(struct.unpack_from(">I", self.body)[0])

    @property
    def text(self) -> str:
        """The first field of the body, as a string."""
        return self.body[4 : 4 + self.integer].decode(errors="replace")


class ControlSocket:
    """A connection to a master. `request` may be called from any thread."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        """Connect. OSError when no master answers within `timeout_s` seconds."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(path))
            self._socket.sendall(_packet(HELLO, VERSION))
            found = self.read()
            if found is None or (found.kind, found.number) != (HELLO, VERSION):
                raise MuxError(f"{path} is not the control socket of an ssh master with protocol {VERSION}")
        except BaseException:
            self._socket.close()
            raise

    def request(
        self, kind: int, *fields: int | bytes, descriptors: Sequence[int] = (), most_s: float = math.inf
    ) -> Message:
        """The reply to a message. MuxError with the master's reason, or when it does not answer in time.

        Args:
            kind: Of the message.
            fields: What follows its number.
            descriptors: Sent after it.
            most_s: Seconds to wait at most, where that is less than the limit of the connection.
        """
        with self._lock:
            self._socket.settimeout(min(self._timeout_s, most_s))
            try:
                self._socket.sendall(_packet(kind, next(self._numbers), *fields))
                for descriptor in descriptors:
                    sent = array.array("i", [descriptor])
                    self._socket.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
                reply = self.read()
            except TimeoutError as error:
                raise MuxError("the ssh master did not answer in time") from error
        if reply is None:
            raise MuxError("the ssh master has ended")
        if reply.kind in (DENIED, FAILURE):
            raise MuxError(reply.text)
        return reply

    def read(self, waits: bool = False) -> Message | None:
        """The next message, None after the last one. `waits`: without the time limit."""
        if waits:
            self._socket.settimeout(None)
        head = self._exactly(4)
        if head is None:
            return None
        (nbytes,) = struct.unpack(">I", head)
        if not 8 <= nbytes <= MOST_BYTES:
            raise MuxError(f"the ssh master sent a message of {nbytes} bytes")
        content = self._exactly(nbytes)
        if content is None:
            return None
        kind, number = struct.unpack_from(">II", content)
        return Message(kind, number, content[8:])

    def is_open(self) -> bool:
        """Whether the master holds its end."""
        return not self.await_end(0.0)

    def await_end(self, timeout_s: float) -> bool:
        """Whether the master closes its end within `timeout_s` seconds."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP)
            return bool(poll.poll(timeout_s * 1e3))
        except (OSError, ValueError):  # it is closed here
            return True

    def close(self) -> None:
        """End it, and a `read` that waits. Safe to call twice."""
        _end(self._socket)

    def _exactly(self, nbytes: int) -> bytes | None:
        content = b""
        while len(content) < nbytes:
            try:
                part = self._socket.recv(nbytes - len(content))
            except TimeoutError:
                raise
            except OSError:  # closed here, by another thread
                return None
            if not part:
                return None
            content += part
        return content


class MuxStreams:
    """What a master carries over its connection for this process, with descriptors of this process."""

    def __init__(self, path: Path, timeout_s: float, count: int, kind: int, content: Sequence[int | bytes]) -> None:
        """Open it.

        Args:
            path: Of the control socket.
            timeout_s: What master and sshd may take.
            count: Number of descriptors, of which the first takes data and the second has some.
            kind: Of the request, which `content` follows.
            content: Its fields.

        Raises:
            SessionRefused: The host has as many sessions as it allows.
            SessionFailed: The master is gone, or refused.
        """
        self._streams, ends = [], []
        try:
            self._control = ControlSocket(path, timeout_s)
        except OSError as error:
            raise SessionFailed(f"the ssh master does not answer ({error})") from error
        try:
            for _ in range(count):
                own, its = socket.socketpair()
                self._streams.append(own)
                ends.append(its)
            self._control.request(kind, *content, descriptors=[its.fileno() for its in ends])
        except OSError as error:
            self.close()
            refused = "refused by peer" in str(error)
            raise (SessionRefused if refused else SessionFailed)(str(error)) from error
        finally:
            for its in ends:
                its.close()

    def sendall(self, data: bytes, /) -> None:
        """To its stdin. OSError when it has ended."""
        self._streams[0].sendall(data)

    def shutdown_write(self) -> None:
        """The end of its stdin. OSError."""
        self._streams[0].shutdown(socket.SHUT_WR)

    def recv(self, nbytes: int, /) -> bytes:
        """Bytes of the command's stdout; empty at its end. OSError."""
        return self._streams[1].recv(nbytes)

    def close(self) -> None:
        """Let go. Its stdin ends, and what another thread receives. Safe to call twice."""
        for stream in self._streams:
            _end(stream)
        self._control.close()


class MuxSession(MuxStreams):
    """A command or a subsystem over a master's connection: a `Session`, also what paramiko's sftp expects."""

    def __init__(self, path: Path, command: str, timeout_s: float, is_subsystem: bool = False) -> None:
        """Start it: a line of the shell there, or the name of a subsystem. Errors as of `MuxStreams`."""
        self.exit_status = -1
        self.status_event = threading.Event()
        flags = (0, 0, 0, int(is_subsystem), NO_ESCAPE)  # no terminal, no X11, no agent
        super().__init__(path, timeout_s, 3, NEW_SESSION, (b"", *flags, b"", command.encode()))
        threading.Thread(target=self._await_exit, name="ssh exit code", daemon=True).start()

    def send(self, data: bytes, /) -> int:
        """Send as `sendall` does; the number of bytes that were taken."""
        return self._streams[0].send(data)

    def recv_stderr(self, nbytes: int, /) -> bytes:
        """Bytes of the command's stderr; empty at its end. OSError."""
        return self._streams[2].recv(nbytes)

    def settimeout(self, timeout_s: float | None) -> None:
        """What one call may take; None: without a limit, the default."""
        for stream in self._streams:
            stream.settimeout(timeout_s)

    def get_name(self) -> str:
        """For the log of paramiko."""
        return "mux"

    def _await_exit(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._control.read(waits=True)) is not None:
                if message.kind == EXIT_MESSAGE:
                    self.exit_status = message.integer
                    break
        self.status_event.set()


def _packet(*fields: int | bytes) -> bytes:
    parts = [
        struct.pack(">I", field) if isinstance(field, int) else struct.pack(">I", len(field)) + field
        for field in fields
    ]
    content = b"".join(parts)
    return struct.pack(">I", len(content)) + content


def _end(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)  # wakes a thread that receives
    stream.close()
