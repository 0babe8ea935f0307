"""A command on another host: one that is waited for, and one that stays. No PTY, every stream drained."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zmqrl.errors import HostFailed
from zmqrl.ssh.shell import Finished, Pipe

CHUNK = 65536
MOST_UNSENT = 64_000_000
"""Bytes that may wait for a process that does not read its stdin; above it the process is abandoned."""
END_S = 2.0


class SessionFailed(OSError):
    """The host did not start a command."""


class SessionRefused(SessionFailed):
    """The host's sshd has as many sessions as it allows."""


class SshStream(Protocol):
    """Stdin and stdout of a command on another host, or a connection to a port there. What both clients give."""

    def sendall(self, data: bytes, /) -> None:
        """To its stdin. OSError when it has ended."""

    def shutdown_write(self) -> None:
        """The end of its stdin. OSError."""

    def recv(self, nbytes: int, /) -> bytes:
        """Bytes of its stdout; empty at its end. OSError."""

    def close(self) -> None:
        """Let go; safe to call twice."""


class SshSession(SshStream, Protocol):
    """A command or a subsystem on another host, with three streams."""

    @property
    def exit_status(self) -> int:
        """Its exit code; -1 when a signal or the connection's loss ended it, or while it runs."""

    @property
    def status_event(self) -> threading.Event:
        """Set once the exit code is known, or the connection is lost."""

    def recv_stderr(self, nbytes: int, /) -> bytes:
        """Bytes of the command's stderr; empty at its end. OSError."""


class Channel(Pipe):
    """A process on another host that is spoken with. It does not die with the channel: it must end at stdin's end.

    `write` may be called from any thread; `lines` from one.
    """

    def __init__(self, host: str, channel: SshSession, stderr: Path) -> None:
        self._host, self._channel, self._stderr = host, channel, stderr
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent = 0
        self._counting = threading.Lock()
        self._input_ended = False
        stderr.parent.mkdir(parents=True, exist_ok=True)
        self._threads = [
            threading.Thread(target=self._send, name=f"{host} stdin", daemon=True),
            threading.Thread(target=self._log, args=(stderr,), name=f"{host} stderr", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def write(self, data: bytes) -> None:
        """Send to the process's stdin; never blocks. HostFailed when the process has long not read."""
        with self._counting:
            self._unsent += len(data)
            unsent = self._unsent
        if unsent > MOST_UNSENT:
            self._channel.close()
            why = f"the remote process does not read its input ({unsent} bytes unsent); the connection was closed"
            raise HostFailed(self._host, why, f"see the log of the process: {self._stderr}")
        self._to_send.put(data)

    def lines(self) -> Iterator[str]:
        """Lines of the process's stdout, without their ends, until it ends or the connection is lost."""
        yield from self.split(iter(partial(_receive, self._channel), b""))

    def end_input(self) -> None:
        """Close the process's stdin, once what was written has gone."""
        if not self._input_ended:
            self._input_ended = True
            self._to_send.put(None)

    def exit_status(self, timeout_s: float) -> int | None:
        """The exit code; -1 when a signal or the connection's loss ended it, None when it still runs."""
        if not self._channel.status_event.wait(timeout_s):
            return None
        return self._channel.exit_status

    def close(self) -> None:
        self.end_input()
        self._threads[0].join(END_S)
        if self._channel.status_event.is_set():
            self._threads[1].join(END_S)  # the end of its stderr is on its way into the log
        self._channel.close()
        for thread in self._threads:
            thread.join(END_S)

    def _send(self) -> None:
        while (data := self._to_send.get()) is not None:
            try:
                self._channel.sendall(data)
            except (OSError, EOFError):
                return  # it ended: the reader reports it
            with self._counting:
                self._unsent -= len(data)
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def _log(self, path: Path) -> None:
        """A full disk loses lines of the log; what is not received would block the process."""
        while chunk := _receive(self._channel, stderr=True):
            with contextlib.suppress(OSError), path.open("ab", buffering=0) as log:
                log.write(chunk)


def finish(host: str, channel: SshSession, timeout_s: float, data: bytes, command: str) -> Finished:
    """Feed a started command, drain both streams, and wait for its end; HostFailed when that takes too long."""
    streams: dict[bool, list[bytes]] = {False: [], True: []}

    def drain(stderr: bool) -> None:
        while chunk := _receive(channel, stderr):
            streams[stderr].append(chunk)

    def feed() -> None:
        with contextlib.suppress(OSError, EOFError):
            channel.sendall(data)
            channel.shutdown_write()

    threads = [threading.Thread(target=drain, args=(stderr,), daemon=True) for stderr in streams]
    threads.append(threading.Thread(target=feed, daemon=True))
    try:
        for thread in threads:
            thread.start()
        if not channel.status_event.wait(timeout_s):
            why = f"`{_short(command)}` did not end within {timeout_s:g} s"
            raise HostFailed(host, why, "log in and check the state of the command")
        for thread in threads[:2]:
            thread.join(END_S)  # what the command started in the background may hold the streams open
    finally:
        channel.close()
        for thread in threads:
            thread.join(END_S)
    return Finished(channel.exit_status, b"".join(streams[False]), b"".join(streams[True]))


def relay(
    channel: SshSession, data: bytes, out: Callable[[bytes], bool], err: Callable[[bytes], Any], timeout_s: float | None
) -> int | None:
    """Pass the output of a started command on until it ends. Its stdin, which takes `data`, is open until then.

    `out` receives its stdout in this thread, and returns whether more is wanted; `err` its stderr, in another thread.
    Returns the exit code; -1 when a signal or the connection's loss ended it; None when `out` wanted no more, or after
    `timeout_s`, without which the command may last.
    """
    is_late = threading.Event()

    def drain() -> None:
        while chunk := _receive(channel, stderr=True):
            err(chunk)

    def end() -> None:
        is_late.set()
        channel.close()

    errors = threading.Thread(target=drain, daemon=True)
    timer = threading.Timer(timeout_s or 0.0, end)
    timer.daemon = True
    try:
        errors.start()
        if timeout_s is not None:
            timer.start()
        with contextlib.suppress(OSError, EOFError):
            channel.sendall(data)
        while chunk := _receive(channel):
            if not out(chunk):
                return None
        if is_late.is_set() or not channel.status_event.wait(END_S):
            return None
        errors.join(END_S)
        return channel.exit_status
    finally:
        timer.cancel()
        channel.close()
        errors.join(END_S)


def _receive(channel: SshSession, stderr: bool = False) -> bytes:
    try:
        return channel.recv_stderr(CHUNK) if stderr else channel.recv(CHUNK)
    except (OSError, EOFError):
        return b""


def _short(command: str) -> str:
    return command if len(command) <= 80 else f"{command[:77]}..."
