"""What the rest of zmqrl needs of an ssh connection, and of the client that makes it. Two clients implement it.

`clients.py` selects one by `ssh.client`. Every failure names host, cause and fix.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zmqrl.config.sections import SshSection
from zmqrl.errors import HostFailed, as_host_failed
from zmqrl.ssh.channel import Channel, SessionFailed, SessionRefused, SshSession, SshStream, finish, relay
from zmqrl.ssh.config import Target
from zmqrl.ssh.refusals import closed_early
from zmqrl.ssh.sftp import RemoteFiles
from zmqrl.ssh.shell import ANSWER_S, HANGS, FileShell, Finished

if TYPE_CHECKING:
    import paramiko

T = TypeVar("T")
GREETINGS = 8
"""Attempts for a host that closes the connection before the SSH banner: a busy sshd drops connections at random."""
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0
FREE_S = 1.0
SILENT_S = 20.0
"""A peer that acknowledges nothing for so long is dead, where a run does not bear longer."""


class Connection(FileShell, ABC):
    """One for everything that goes to a host. Its methods may be called from any thread."""

    client: Client
    """The client that opened this connection, and opens its successor."""

    def __init__(self, target: Target) -> None:
        self.target, self.host = target, target.host

    def renewed(self) -> Connection:
        if self.is_alive():
            return self
        self.close()
        return self.client.open(self.target)

    def run(self, command: str, timeout_s: float, input: bytes = b"") -> Finished:
        """Run a command in the login's shell, without a PTY, and wait for it.

        HostFailed after `timeout_s` seconds; the command may still run on the remote host.
        """
        return finish(self.target.host, self._session(command), timeout_s, input, command)

    def check_answer(self) -> None:
        host, requested = self.target.host, "true"
        try:
            self.run(requested, ANSWER_S)
        except HostFailed as error:
            if not self.is_alive():
                raise
            cause = f"connected, but no answer within {ANSWER_S:g} s to: {requested}"
            raise HostFailed(host, cause, HANGS.format(there=self.target.login_command())) from error

    def start(self, command: str, stderr: Path) -> Channel:
        """Start a command that stays. Its stderr is appended to the file; it must end when its stdin does."""
        return Channel(self.target.host, self._session(command), stderr)

    def relay(
        self,
        command: str,
        out: Callable[[bytes], bool],
        err: Callable[[bytes], object],
        input: bytes = b"",
        timeout_s: float | None = None,
    ) -> int | None:
        """Run a command and pass its output on as it comes, see `zmqrl.ssh.channel.relay`.

        HostFailed when it cannot be started, and when the connection is lost before it ends.
        """
        code = relay(self._session(command), input, out, err, timeout_s)
        if code == -1 and not self.is_alive():
            raise HostFailed(self.target.host, "the connection is lost", f"try: {self.target.login_command()} true")
        return code

    def put(self, content: bytes | Path, path: str, mode: int = 0o600) -> None:
        """Write a remote file, at once and with that mode; its folders are made."""
        with self._files() as files:
            files.put(content, path, mode)

    def get(self, path: str, target: Path) -> None:
        """Copy a remote file to here."""
        with self._files() as files:
            files.get(path, target)

    def remove_tree(self, path: str) -> None:
        """Remove a remote folder and all in it."""
        with self._files() as files:
            files.remove_tree(path)

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the connection holds, as far as the kernel and the remote sshd have reported."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; bounded, and safe to call twice. Remote processes end only by their stdin's end."""

    @abstractmethod
    def open_session(self, command: str) -> SshSession:
        """Start a command, once. SessionRefused when there are too many, SessionFailed for any other reason."""

    @abstractmethod
    def open_port(self, port: int) -> SshStream:
        """Connect to a port on the loopback there. As `open_session`."""

    @abstractmethod
    def open_sftp(self) -> paramiko.SFTPClient:
        """Start the sftp subsystem. As `open_session`."""

    def _files(self) -> RemoteFiles:
        return RemoteFiles(self.target.host, lambda: _once_free(self.open_sftp))

    def _session(self, command: str) -> SshSession:
        try:
            return _once_free(lambda: self.open_session(command))
        except SessionFailed as error:
            by_hand = f"try: {self.target.login_command()} true"
            if not self.is_alive():
                why, fix = "the connection is lost", by_hand
            elif isinstance(error, SessionRefused):
                why = f"the host's sshd refused a further session ({error}; MaxSessions)"
                fix = "set MaxSessions 10 in its sshd_config"
            else:
                why, fix = f"the host's sshd refused to run a command ({error})", by_hand
            raise HostFailed(self.target.host, why, fix) from error


class HungUp(Exception):
    """The remote side closed the connection before the SSH banner: retried."""


class Client(ABC):
    """Makes connections; thread-safe."""

    def __init__(self, ssh: SshSection, silence_s: float) -> None:
        """Nothing is connected to yet.

        Args:
            ssh: whether unknown host keys are accepted, and the time that one step may take.
            silence_s: a peer that acknowledges nothing for so long is dead; a cut cable may last as long.
        """
        self.ssh, self.silence_s = ssh, silence_s

    def timeout_s(self, target: Target) -> float:
        """Seconds that one step of connecting may take."""
        return max(self.ssh.connect_timeout_s, target.connect_timeout_s)

    def open(self, target: Target) -> Connection:
        """Connect, check the host's key, log in. HostFailed when it cannot be used, after a bounded time."""
        with as_host_failed(target.host):
            made = self._open(target)
            made.client = self
            return made

    def _open(self, target: Target) -> Connection:
        for attempt in range(GREETINGS):
            if attempt:  # apart from the others that were dropped with us
                time.sleep(min(BACKOFF_MAX_S, BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.5))
            try:
                return self.open_once(target)
            except HungUp as error:
                why = str(error)
        raise closed_early(target, GREETINGS, why)

    @abstractmethod
    def open_once(self, target: Target) -> Connection:
        """Connect as `open` does, with one attempt. HungUp when another one may succeed."""


def open_all(client: Client, targets: Sequence[Target], most: int = 8) -> Iterator[tuple[str, Connection | HostFailed]]:
    """Connect to many hosts, at most `most` at once; each host's result as soon as there is one.

    Connections that the caller has been given are the caller's to close, also when it stops half-way; the others are
    closed then.
    """
    waiting: queue.SimpleQueue[Target] = queue.SimpleQueue()
    for target in targets:
        waiting.put(target)
    done: queue.SimpleQueue[tuple[str, Connection | HostFailed | BaseException]] = queue.SimpleQueue()
    abandoned = threading.Event()

    def work() -> None:
        while not abandoned.is_set():
            try:
                target = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((target.host, client.open(target)))
            except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
                done.put((target.host, error))

    threads = [threading.Thread(target=work, name="ssh connect", daemon=True) for _ in range(min(most, len(targets)))]
    for thread in threads:
        thread.start()
    try:
        for _ in targets:
            host, result = done.get()
            if not isinstance(result, (Connection, HostFailed)):
                raise result
            yield host, result
    finally:
        abandoned.set()
        for thread in threads:
            thread.join()
        while not done.empty():
            _, result = done.get()
            if isinstance(result, Connection):
                result.close()


def _once_free(opening: Callable[[], T]) -> T:
    """A refusal is waited out: an sshd with MaxSessions 1 frees the last session a moment after its end."""
    until = time.monotonic() + FREE_S
    while True:
        try:
            return opening()
        except SessionRefused:
            if time.monotonic() >= until:
                raise
        time.sleep(FREE_S / 10)
