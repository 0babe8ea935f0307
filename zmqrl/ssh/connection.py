"""The ssh connection to a host: one for everything that goes there. Every failure names host, cause and cure."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zmqrl.config.sections import SshSection
from zmqrl.errors import HostFailed
from zmqrl.ssh.auth import log_in
from zmqrl.ssh.channel import Channel, finish
from zmqrl.ssh.config import Target
from zmqrl.ssh.known_hosts import HostKey, check, known_keys, preferred_kinds
from zmqrl.ssh.sftp import RemoteFiles
from zmqrl.ssh.shell import Finished, HostShell
from zmqrl.ssh.transport import Direct, JumpTransport, Proxied, SshTransport
from zmqrl.ssh.tunnel import Tunnels

if TYPE_CHECKING:
    import paramiko

GREETINGS = 8
"""Attempts for a host that closes the connection before the SSH banner: a busy sshd drops connections at random."""
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0
KEEPALIVE_S = 5
END_S = 2.0
FREE_S = 1.0
LATE = 0.9
"""Share of a step's time after which its failure is that of the time."""


class Connection(HostShell):
    """Made by `open`; `run`, `start` and the rest may be called from any thread."""

    def __init__(
        self, target: Target, transport: paramiko.Transport, ssh_transport: SshTransport, timeout_s: float
    ) -> None:
        self.target = target
        self._accepted: tuple[str, ...] = ()
        self._transport, self._ssh_transport, self._timeout_s = transport, ssh_transport, timeout_s
        self._tunnels = Tunnels(target.host, transport)
        self._gateways: Gateways | None = None

    @classmethod
    def open(cls, target: Target, ssh: SshSection, gateways: Gateways | None = None) -> Connection:
        """Connect, check the host's key, log in.

        Args:
            target: where to and as whom.
            ssh: whether unknown host keys are accepted, and the time that one step may take.
            gateways: jump hosts that are shared with other connections; default: one of its own.

        Raises:
            HostFailed: it cannot be used, after a bounded time.
        """
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its tracebacks are not for the terminal
        gateways = gateways or Gateways(ssh)
        timeout_s = max(ssh.connect_timeout_s, target.connect_timeout_s)
        for attempt in range(GREETINGS):
            if attempt:  # apart from the others that were dropped with us
                time.sleep(min(BACKOFF_MAX_S, BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.5))
            try:
                return cls._open_once(target, ssh, timeout_s, gateways)
            except _HungUp as error:
                why = str(error)
        raise HostFailed(
            target.host,
            f"{target.address} closed the connection before the SSH banner ({GREETINGS} attempts): {why}",
            f"possible causes: no sshd, a busy sshd (MaxStartups), a firewall; try: {target.login_command()} true",
        )

    @classmethod
    def _open_once(cls, target: Target, ssh: SshSection, timeout_s: float, gateways: Gateways) -> Connection:
        with contextlib.ExitStack() as undo:
            ssh_transport = _open_transport(target, timeout_s, gateways, undo)
            transport, accepted = _handshake(target, ssh, ssh_transport, timeout_s, undo)
            log_in(transport, target)
            transport.set_keepalive(KEEPALIVE_S)
            made = cls(target, transport, ssh_transport, timeout_s)
            made._accepted = accepted
            made._gateways = gateways if target.jump else None
            undo.pop_all()
            return made

    @property
    def accepted(self) -> tuple[str, ...]:
        """Those of the host, and of the jump hosts before it."""
        return (*(self._gateways.accepted if self._gateways else ()), *self._accepted)

    def run(self, command: str, timeout_s: float, input: bytes = b"") -> Finished:
        """Run a command in the login's shell, without a PTY, and wait for it.

        HostFailed after `timeout_s` seconds; the command may still run on the remote host.
        """
        channel = self._session(command)
        return finish(self.target.host, channel, timeout_s, input, command)

    def start(self, command: str, stderr: Path) -> Channel:
        """Start a command that stays. Its stderr is appended to the file; it must end when its stdin does."""
        return Channel(self.target.host, self._session(command), stderr)

    def put(self, content: bytes | Path, path: str, mode: int = 0o600) -> None:
        """Write a remote file, at once and with that mode; its folders are made."""
        with RemoteFiles(self.target.host, self._transport) as files:
            files.put(content, path, mode)

    def get(self, path: str, target: Path) -> None:
        """Copy a remote file to here."""
        with RemoteFiles(self.target.host, self._transport) as files:
            files.get(path, target)

    def remove_tree(self, path: str) -> None:
        """Remove a remote folder and all in it."""
        with RemoteFiles(self.target.host, self._transport) as files:
            files.remove_tree(path)

    def forward_back(self, to: Sequence[tuple[str, int]]) -> int:
        """A port on the remote host's loopback that leads to the first of `to` that answers, as seen from here."""
        return self._tunnels.open(to)

    def is_alive(self) -> bool:
        """Whether the connection holds, as far as the kernel and the remote sshd have reported."""
        return self._transport.is_active()

    def set_keepalive_timeout(self, silence_s: float) -> None:
        """Live through a cut cable of so long; without this a silent peer is soon taken for dead."""
        self._ssh_transport.set_keepalive_timeout(silence_s)
        if self._gateways is not None and self.target.jump is not None:
            self._gateways.set_keepalive_timeout(self.target.jump, silence_s)

    def close(self) -> None:
        """End the connection and its share of a jump host; bounded. Remote processes end only by their stdin's end."""
        _end(self._transport)
        self._ssh_transport.close()
        gateways, self._gateways = self._gateways, None
        if gateways is not None and self.target.jump is not None:
            gateways.release(self.target.jump)

    def _session(self, command: str) -> paramiko.Channel:
        import paramiko

        try:
            channel = self._open_session()
            try:
                channel.settimeout(self._timeout_s)
                channel.exec_command(command)
                channel.settimeout(None)
            except BaseException:
                channel.close()
                raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not self.is_alive():
                why, fix = "the connection is lost", f"try: {self.target.login_command()} true"
            elif isinstance(error, paramiko.ChannelException):
                why = f"the host's sshd refused a further session ({error}; MaxSessions)"
                fix = "set MaxSessions 10 in its sshd_config"
            else:
                why, fix = (
                    f"the host's sshd refused to run a command ({error})",
                    f"try: {self.target.login_command()} true",
                )
            raise HostFailed(self.target.host, why, fix) from error
        return channel

    def _open_session(self) -> paramiko.Channel:
        """A refusal is waited out: an sshd with MaxSessions 1 frees the last session a moment after its end."""
        import paramiko

        until = time.monotonic() + FREE_S
        while True:
            try:
                return self._transport.open_session(timeout=self._timeout_s)
            except paramiko.ChannelException:
                if time.monotonic() >= until:
                    raise
            time.sleep(FREE_S / 10)


class Gateways:
    """Connections to jump hosts, one each, shared by the hosts behind them; thread-safe."""

    def __init__(self, ssh: SshSection) -> None:
        self.accepted: tuple[str, ...] = ()
        self._ssh = ssh
        self._open: dict[Target, Connection] = {}
        self._users: dict[Target, int] = {}
        self._locks: dict[Target, threading.Lock] = {}
        self._lock = threading.Lock()

    def take(self, jump: Target) -> paramiko.Transport:
        """The connection to a jump host, made if need be; HostFailed as of any host. Each `take` needs a `release`."""
        with self._lock:
            lock = self._locks.setdefault(jump, threading.Lock())
        with lock:
            held = self._open.get(jump)
            if held is None or not held.is_alive():
                if held is not None:
                    held.close()
                held = Connection.open(jump, self._ssh, self)
                self._open[jump] = held
                self.accepted += held._accepted
            self._users[jump] = self._users.get(jump, 0) + 1
            return held._transport

    def set_keepalive_timeout(self, jump: Target, silence_s: float) -> None:
        """As `Connection.set_keepalive_timeout`."""
        held = self._open.get(jump)
        if held is not None:
            held.set_keepalive_timeout(silence_s)

    def release(self, jump: Target) -> None:
        """One user less; the last one's release ends the connection."""
        with self._locks[jump]:
            self._users[jump] -= 1
            if not self._users[jump]:
                held = self._open.pop(jump, None)
                if held is not None:
                    held.close()


def open_all(
    targets: Sequence[Target], ssh: SshSection, most: int = 8
) -> Iterator[tuple[str, Connection | HostFailed]]:
    """Connect to many hosts, at most `most` at once; each host's result as soon as there is one.

    Connections that the caller has been given are the caller's to close, also when it stops half-way; the others are
    closed then.
    """
    gateways = Gateways(ssh)
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
                done.put((target.host, Connection.open(target, ssh, gateways)))
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


class _HungUp(Exception):
    """The remote side closed the connection before the SSH banner: retried."""


def _open_transport(target: Target, timeout_s: float, gateways: Gateways, undo: contextlib.ExitStack) -> SshTransport:
    ssh_transport: SshTransport
    if target.jump is not None:
        try:
            gateway = gateways.take(target.jump)
        except HostFailed as error:
            raise HostFailed(target.host, f"jump host {error.host}: {error.cause}", error.fix) from error
        undo.callback(gateways.release, target.jump)
        ssh_transport = JumpTransport(target, gateway, timeout_s)
    elif target.proxy_command is not None:
        ssh_transport = Proxied(target.proxy_command)
    else:
        ssh_transport = Direct(target, timeout_s)
    undo.callback(ssh_transport.close)
    return ssh_transport


def _handshake(
    target: Target, ssh: SshSection, ssh_transport: SshTransport, timeout_s: float, undo: contextlib.ExitStack
) -> tuple[paramiko.Transport, tuple[str, ...]]:
    """The ssh session, with the host's key checked."""
    import paramiko

    began = time.monotonic()
    transport: paramiko.Transport | None = None
    try:
        transport = paramiko.Transport(ssh_transport.stream)
        undo.callback(_end, transport)
        transport.banner_timeout = transport.handshake_timeout = timeout_s
        transport.auth_timeout = transport.channel_timeout = timeout_s
        security = transport.get_security_options()
        security.key_types = preferred_kinds(known_keys(target), security.key_types)
        transport.start_client(timeout=2 * timeout_s)
        shown = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        if ssh_transport.stderr_tail():
            why = f"ProxyCommand: {ssh_transport.stderr_tail()}"
            raise HostFailed(target.host, why, f"try manually: {target.proxy_command}") from error
        if isinstance(error.__context__, TimeoutError):
            why = f"{target.address} sent no SSH banner within {timeout_s:g} s"
            fix = f"possible causes: no sshd, or a hanging sshd; see the output of: {target.login_command()} true"
            raise HostFailed(target.host, why, fix) from error
        if transport is not None and transport.remote_version and time.monotonic() - began >= LATE * timeout_s:
            why = f"{target.address} sent its SSH banner, and no key exchange followed within {timeout_s:g} s"
            fix = (
                "possible causes: full packets are lost on the way (MTU; a VPN), or a hanging sshd; "
                f"try: ping -M do -s 1400 {target.hostname}"
            )
            raise HostFailed(target.host, why, fix) from error
        if "banner" in str(error) or isinstance(error, (EOFError, OSError)):
            raise _HungUp(str(error) or type(error).__name__) from error
        why = f"{target.address} does not support a common SSH protocol: {error}"
        raise HostFailed(target.host, why, f"see the output of: {target.login_command()} true") from error
    new = check(target, HostKey(shown.get_name(), shown.asbytes()), ssh.host_keys)
    return transport, (new,) if new else ()


def _end(transport: paramiko.Transport) -> None:
    transport.close()
    with contextlib.suppress(OSError):
        transport.sock.close()
    if transport.is_alive():
        transport.join(END_S)
