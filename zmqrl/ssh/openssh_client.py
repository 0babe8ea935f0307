"""The client `openssh`: the system's `ssh` logs in, and its master connection carries everything that goes to a host.

A master that this process starts ends at `close`; where this process dies before, `PERSIST_S` after it and after the
end of its sessions. A master of the user's own (`ControlPath` of ~/.ssh/config) is used where one is running, and left.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from zmqrl.config.sections import SshSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.ssh import mux, openssh_log, refusals
from zmqrl.ssh.channel import SessionFailed, SshSession, SshStream
from zmqrl.ssh.config import Target
from zmqrl.ssh.connection import Client, Connection
from zmqrl.ssh.mux import ControlSocket, MuxSession, MuxStreams
from zmqrl.ssh.openssh_log import StartLog
from zmqrl.ssh.sftp import ANSWER_S
from zmqrl.wire.runtime_folder import check_length, make_private, run_folder_root

if TYPE_CHECKING:
    import paramiko

OLDEST = (7, 6)
"""The first version with `StrictHostKeyChecking accept-new`."""
PERSIST_S = 10
"""How long a master outlives its last use, when this process did not end it."""
KEEPALIVE_S = 5
END_S = 2.0
VERSION_S = 10.0
CHUNK = 65536
TEMPORARY = ".0123456789abcdef"
"""What ssh appends to the name of a control socket until it listens."""
Place = tuple[str, int]


@cache
def require_openssh() -> str:
    """The path of the ssh client. ConfigError when it cannot do what is needed of it."""
    client = shutil.which("ssh")
    instead = "or set ssh.client: paramiko"
    if client is None:
        what = "found no `ssh` on the PATH"
        raise ConfigError(what, key=("ssh", "client"), value="openssh", fix=f"apt install openssh-client; {instead}")
    try:
        done = subprocess.run([client, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"`{client} -V` failed: {error}", key=("ssh", "client"), value="openssh", fix=instead
        ) from error
    text = (done.stderr + done.stdout).decode(errors="replace").strip()
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    needed = ".".join(map(str, OLDEST))
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        found = f"{client} is {text or 'of an unknown version'}"
        raise ConfigError(
            found, key=("ssh", "client"), value="openssh", fix=f"OpenSSH {needed} or newer is required; {instead}"
        )
    return client


class OpensshClient(Client):
    """One master per connection."""

    def __init__(self, ssh: SshSection, silence_s: float) -> None:
        """ConfigError: no suitable `ssh`, or the folder of control sockets is too long or not private."""
        super().__init__(ssh, silence_s)
        self._command = require_openssh()
        self._root = run_folder_root()
        check_length(_control_path(self._root / _new_name()).with_suffix(TEMPORARY))
        make_private(self._root)

    def open_once(self, target: Target) -> Connection:
        timeout_s = self.timeout_s(target)
        held = _users_master(target, timeout_s)
        if held is not None:
            path = Path(target.call.control_path or "")
            return OpensshConnection(target, path, held, timeout_s)
        folder = self._root / _new_name()
        make_private(folder)
        try:
            log = self._start(target, folder, timeout_s)
            lease = ControlSocket(_control_path(folder), timeout_s)
            return OpensshConnection(target, _control_path(folder), lease, timeout_s, folder, log.accepted)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            why = f"the ssh master does not answer ({error})"
            raise HostFailed(target.host, why, refusals.by_hand(target)) from error
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _start(self, target: Target, folder: Path, timeout_s: float) -> StartLog:
        """Start a master and wait until it has logged in; HostFailed, HungUp. What it logs later is not kept."""
        (folder / "config").write_bytes(os.fsencode(self._settings(timeout_s) + target.call.config))
        os.mkfifo(folder / "log", 0o600)
        log = StartLog(target, timeout_s)
        reading = os.open(folder / "log", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with (folder / "stderr").open("wb") as stderr:
                process = subprocess.Popen(
                    self._argv(target, folder),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,  # it has no terminal: it cannot ask a question
                )
            is_late = not _await_end(process, reading, log)
        finally:
            os.close(reading)
        if is_late or process.returncode:
            proxy = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            raise openssh_log.failure(log, proxy, is_late)
        for name in ("log", "config", "stderr"):
            (folder / name).unlink()
        return log

    def _argv(self, target: Target, folder: Path) -> Sequence[str]:
        control = str(_control_path(folder)).replace("%", "%%")
        settings = {"ControlMaster": "yes", "ControlPath": f'"{control}"', "ControlPersist": str(PERSIST_S)}
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        # -v: the log names what was tried, and the fingerprint of an unknown host key.
        common = [self._command, "-F", str(folder / "config"), "-v", "-E", str(folder / "log"), "-N"]
        return [*common, *options, *target.call.options, "--", target.call.name]

    def _settings(self, timeout_s: float) -> str:
        """What goes before the user's configuration, and also holds for jump hosts."""
        every_s = max(1, min(KEEPALIVE_S, int(self.silence_s / 4)))
        values = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes" if self.ssh.host_keys == "strict" else "accept-new",
            "ConnectTimeout": math.ceil(timeout_s),
            "ServerAliveInterval": every_s,
            "ServerAliveCountMax": math.ceil(self.silence_s / every_s),
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            "RequestTTY": "no",
            "RemoteCommand": "none",
        }
        return "\n".join(["Host *", *(f"  {key} {value}" for key, value in values.items()), ""])


class OpensshConnection(Connection):
    """Over a master. `lease` keeps it from ending for want of use."""

    def __init__(
        self,
        target: Target,
        path: Path,
        lease: ControlSocket,
        timeout_s: float,
        folder: Path | None = None,
        accepted: tuple[str, ...] = (),
    ) -> None:
        """`folder`: of a master that was started here; None: the master is the user's. OSError."""
        super().__init__(target)
        self._path, self._lease, self._timeout_s = path, lease, timeout_s
        self._folder, self._accepted = folder, accepted
        self._pid = lease.request(mux.ALIVE_CHECK).integer
        self._forwards: list[tuple[bytes | int, ...]] = []
        self._closing = threading.Lock()
        self._is_closed = False

    @property
    def accepted(self) -> tuple[str, ...]:
        return self._accepted

    def open_session(self, command: str) -> SshSession:
        return MuxSession(self._path, command, self._timeout_s)

    def open_port(self, port: int) -> SshStream:
        return MuxStreams(self._path, self._timeout_s, 2, mux.STDIO_FORWARD, (b"", b"127.0.0.1", port))

    def open_sftp(self) -> paramiko.SFTPClient:
        import paramiko

        session = MuxSession(self._path, "sftp", self._timeout_s, is_subsystem=True)
        session.settimeout(ANSWER_S)
        try:
            return paramiko.SFTPClient(session)  # type: ignore[arg-type]
        except (paramiko.SSHException, paramiko.SFTPError, EOFError, OSError) as error:
            session.close()
            # A server without sftp ends the session before or after the first message is written.
            is_closed = isinstance(error, (paramiko.SSHException, EOFError, ConnectionError))
            raise SessionFailed("" if is_closed else str(error)) from error

    def forward_back(self, to: Sequence[Place]) -> int:
        address, port = _first_that_answers(to)
        forward = (mux.REMOTE, b"127.0.0.1", 0, address.encode(), port)
        try:
            allocated = self._lease.request(mux.OPEN_FORWARD, *forward).integer
        except OSError as error:
            raise refusals.no_tunnel(self.target.host, str(error)) from error
        self._forwards.append(forward)  # the master knows it by the port that was requested
        return allocated

    def is_alive(self) -> bool:
        return self._lease.is_open()

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            if self._folder is None:
                for forward in self._forwards:
                    with contextlib.suppress(OSError):
                        self._lease.request(mux.CLOSE_FORWARD, *forward)
            else:
                self._end_master()
                shutil.rmtree(self._folder, ignore_errors=True)
            self._lease.close()

    def _end_master(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already, or does not answer
            self._lease.request(mux.TERMINATE, most_s=END_S)
        if not self._lease.await_end(END_S):
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            self._lease.await_end(END_S)


def _new_name() -> str:
    return f"ssh-{secrets.token_hex(4)}"


def _control_path(folder: Path) -> Path:
    return folder / "m"


def _users_master(target: Target, timeout_s: float) -> ControlSocket | None:
    """Where the user's own master listens; None when none does."""
    if target.call.control_path is None:
        return None
    try:
        return ControlSocket(Path(target.call.control_path), timeout_s)
    except OSError:
        return None


def _await_end(process: subprocess.Popen[bytes], reading: int, log: StartLog) -> bool:
    """Read the log of ssh until it has gone to the background or failed; False when it was silent for too long.

    It is killed then, with its proxies.
    """
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(reading, select.POLLIN)
    deadline = time.monotonic() + log.limit_s
    try:
        while process.poll() is None:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1e3))
            if ready.get(reading, 0) & select.POLLIN and log.take(os.read(reading, CHUNK)):
                deadline = time.monotonic() + log.limit_s
            elif time.monotonic() >= deadline:
                return False
            elif set(ready) == {reading}:  # its writer has closed it, and its exit is near
                poll.unregister(reading)
        with contextlib.suppress(BlockingIOError):
            while log.take(os.read(reading, CHUNK)):
                pass
        return True
    finally:
        os.close(ended)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)


def _first_that_answers(to: Sequence[Place]) -> Place:
    """The first place that accepts a connection; the only one is not tried."""
    import socket

    for place in to if len(to) > 1 else ():
        with contextlib.suppress(OSError):
            socket.create_connection(place, mux.END_S).close()
            return place
    return to[0]
