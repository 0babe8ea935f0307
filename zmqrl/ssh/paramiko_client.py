"""The client `paramiko`: connections to hosts, and to the jump hosts before them, within this process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from zmqrl.config.sections import SshSection
from zmqrl.errors import HostFailed
from zmqrl.ssh import refusals
from zmqrl.ssh.auth import log_in
from zmqrl.ssh.channel import SessionFailed, SessionRefused, SshSession, SshStream
from zmqrl.ssh.config import Target
from zmqrl.ssh.connection import Client, Connection, HungUp
from zmqrl.ssh.known_hosts import SshHostKey, check, known_keys, preferred_kinds
from zmqrl.ssh.transport import Direct, JumpTransport, Proxied, SshTransport
from zmqrl.ssh.tunnel import Tunnels

if TYPE_CHECKING:
    import paramiko

T = TypeVar("T")
KEEPALIVE_S = 5
END_S = 2.0
LATE = 0.9
"""Share of a step's time after which its failure is that of the time."""


class ParamikoClient(Client):
    """Jump hosts are connected to once, for all hosts behind them."""

    def __init__(self, ssh: SshSection, silence_s: float) -> None:
        super().__init__(ssh, silence_s)
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its tracebacks are not for the terminal
        self._gateways = Gateways(self)

    def open_once(self, target: Target) -> ParamikoConnection:
        timeout_s = self.timeout_s(target)
        with contextlib.ExitStack() as undo:
            ssh_transport = self._open_transport(target, timeout_s, undo)
            transport, accepted = _handshake(target, self.ssh, ssh_transport, timeout_s, undo)
            log_in(transport, target)
            transport.set_keepalive(KEEPALIVE_S)
            gateways = self._gateways if target.jump else None
            made = ParamikoConnection(target, transport, ssh_transport, timeout_s, accepted, gateways)
            undo.pop_all()
            return made

    def _open_transport(self, target: Target, timeout_s: float, undo: contextlib.ExitStack) -> SshTransport:
        ssh_transport: SshTransport
        if target.jump is not None:
            try:
                gateway = self._gateways.take(target.jump)
            except HostFailed as error:
                raise refusals.through_jump(target, error) from error
            undo.callback(self._gateways.release, target.jump)
            ssh_transport = JumpTransport(target, gateway, timeout_s)
        elif target.proxy_command is not None:
            ssh_transport = Proxied(target.proxy_command)
        else:
            ssh_transport = Direct(target, timeout_s, self.silence_s)
        undo.callback(ssh_transport.close)
        return ssh_transport


class ParamikoConnection(Connection):
    """Made by `ParamikoClient.open`."""

    def __init__(
        self,
        target: Target,
        transport: paramiko.Transport,
        ssh_transport: SshTransport,
        timeout_s: float,
        accepted: tuple[str, ...],
        gateways: Gateways | None,
    ) -> None:
        super().__init__(target)
        self.own_accepted = accepted
        """Reports of the keys that were accepted of the host itself."""
        self.transport = transport
        self._ssh_transport, self._timeout_s = ssh_transport, timeout_s
        self._tunnels = Tunnels(target.host, transport)
        self._gateways = gateways

    @property
    def accepted(self) -> tuple[str, ...]:
        """Reports of the keys that were accepted of the host, and of the jump hosts before it."""
        return (*(self._gateways.accepted if self._gateways else ()), *self.own_accepted)

    def forward_back(self, to: Sequence[tuple[str, int]]) -> int:
        return self._tunnels.open(to)

    def is_alive(self) -> bool:
        return self.transport.is_active()

    def close(self) -> None:
        _end(self.transport)
        self._ssh_transport.close()
        gateways, self._gateways = self._gateways, None
        if gateways is not None and self.target.jump is not None:
            gateways.release(self.target.jump)

    def open_session(self, command: str) -> SshSession:
        return self._opened(lambda: self._started(command))

    def open_port(self, port: int) -> SshStream:
        to, origin = ("127.0.0.1", port), ("127.0.0.1", 0)
        return self._opened(lambda: self.transport.open_channel("direct-tcpip", to, origin, timeout=self._timeout_s))

    def open_sftp(self) -> paramiko.SFTPClient:
        client = self._opened(self.transport.open_sftp_client)
        assert client is not None
        return client

    def _started(self, command: str) -> paramiko.Channel:
        channel = self.transport.open_session(timeout=self._timeout_s)
        try:
            channel.settimeout(self._timeout_s)
            channel.exec_command(command)
            channel.settimeout(None)
        except BaseException:
            channel.close()
            raise
        return channel

    @staticmethod
    def _opened(opening: Callable[[], T]) -> T:
        import paramiko

        try:
            return opening()
        except paramiko.ChannelException as error:
            raise SessionRefused(str(error)) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise SessionFailed(str(error)) from error


class Gateways:
    """Connections to jump hosts, one each, shared by the hosts behind them; thread-safe."""

    def __init__(self, client: ParamikoClient) -> None:
        self.accepted: tuple[str, ...] = ()
        self._client = client
        self._open: dict[Target, ParamikoConnection] = {}
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
                opened = self._client.open(jump)
                assert isinstance(opened, ParamikoConnection)
                held = opened
                self._open[jump] = held
                self.accepted += held.own_accepted
            self._users[jump] = self._users.get(jump, 0) + 1
            return held.transport

    def release(self, jump: Target) -> None:
        """One user less; the last one's release ends the connection."""
        with self._locks[jump]:
            self._users[jump] -= 1
            if not self._users[jump]:
                held = self._open.pop(jump, None)
                if held is not None:
                    held.close()


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
            raise refusals.proxy_command(target, ssh_transport.stderr_tail()) from error
        if isinstance(error.__context__, TimeoutError):
            raise refusals.no_banner(target, timeout_s) from error
        if transport is not None and transport.remote_version and time.monotonic() - began >= LATE * timeout_s:
            raise refusals.no_key_exchange(target, timeout_s) from error
        if "banner" in str(error) or isinstance(error, (EOFError, OSError)):
            raise HungUp(str(error) or type(error).__name__) from error
        raise refusals.no_common_protocol(target, str(error)) from error
    new = check(target, SshHostKey(shown.get_name(), shown.asbytes()), ssh.host_keys)
    return transport, (new,) if new else ()


def _end(transport: paramiko.Transport) -> None:
    transport.close()
    with contextlib.suppress(OSError):
        transport.sock.close()
    if transport.is_alive():
        transport.join(END_S)
