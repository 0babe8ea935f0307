"""The probe on another host, over its SSH connection."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.sections import HostSection
from zmqrl.doctor.links import END_S, MODULE, STDERR_TAIL, Link
from zmqrl.doctor.messages import Order, Word, order_line, read_word
from zmqrl.orchestrators.ssh_connection import Connection

LOOPBACK = "127.0.0.1"


class SshLink(Link):
    """Owns the connection. `host` is filled from the defaults."""

    def __init__(self, connection: Connection, host: HostSection) -> None:
        self._connection, self._tunnel = connection, host.tunnel
        self.accepted = (*connection.jump_accepted, *connection.accepted)
        descriptor, name = tempfile.mkstemp(prefix="zmqrl-doctor-", suffix=".log")
        os.close(descriptor)
        self._stderr = Path(name)
        try:
            self._channel = connection.start(far_command(host), self._stderr)
        except BaseException:
            self._stderr.unlink()
            raise

    def send(self, order: Order) -> None:
        self._channel.write(order_line(order))

    def words(self) -> Iterator[Word]:
        for line in self._channel.lines():
            word = read_word(line)
            if word is not None:
                yield word

    def ending(self) -> tuple[int | None, str]:
        code = self._channel.exit_status(END_S)
        self._channel.close()  # then its stderr is whole
        return code, self._stderr.read_text(errors="replace")[-STDERR_TAIL:]

    def carry(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        if not self._tunnel:
            return tuple(addresses), tuple(ports)
        return (LOOPBACK,), tuple(self._connection.forward_back((addresses[0], port)) for port in ports)

    def hang_up(self) -> None:
        self._channel.close()

    def release(self) -> None:
        self._channel.close()
        self._connection.close()
        self._stderr.unlink(missing_ok=True)


def far_command(host: HostSection) -> str:
    """What the far shell is told: from the work directory, if it is there, as the host agent would be started."""
    variables = [shlex.quote(f"{name}={value}") for name, value in host.env.items()]
    setting = f"env {' '.join(variables)} " if variables else ""
    assert host.python is not None and host.workdir is not None, "filled from the defaults"
    return f"cd {far_path(host.workdir)} 2>/dev/null; exec {setting}{far_path(host.python)} -m {MODULE}"


def far_path(path: str) -> str:
    """Quoted for the far shell, which expands a leading `~/`."""
    if path == "~":
        return path
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
