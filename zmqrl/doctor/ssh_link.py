"""The probe on another host, over its SSH connection."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from zmqrl.config.sections import HostSection
from zmqrl.doctor.links import END_S, MODULE, STDERR_TAIL, Link
from zmqrl.messages.doctor import Order, Word, order_line
from zmqrl.orchestrators.ssh_commands import environment, far
from zmqrl.orchestrators.ssh_connection import Connection

LOOPBACK = "127.0.0.1"


class SshLink(Link):
    """Owns the connection."""

    def __init__(self, connection: Connection, host: HostSection, learner_is_here: bool) -> None:
        """`host` is filled from the defaults. `learner_is_here`: a tunnel needs no address of this machine."""
        super().__init__()
        self._connection, self._tunnel, self._learner_is_here = connection, host.tunnel, learner_is_here
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
        yield from self.words_in(self._channel.lines())

    def ending(self) -> tuple[int | None, str]:
        code = self._channel.exit_status(END_S)
        self.hang_up()  # then its stderr is whole
        return code, self._stderr.read_text(errors="replace")[-STDERR_TAIL:]

    def carry(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        if not self._tunnel:
            return tuple(addresses), tuple(ports)
        to = LOOPBACK if self._learner_is_here or not addresses else addresses[0]
        return (LOOPBACK,), tuple(self._connection.forward_back((to, port)) for port in ports)

    def hang_up(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the reader may be releasing it in this moment
            self._channel.close()

    def release(self) -> None:
        self.hang_up()
        with contextlib.suppress(EOFError, OSError):
            self._connection.close()
        self._stderr.unlink(missing_ok=True)


def far_command(host: HostSection) -> str:
    """The command for the remote shell: from the work directory, if it is there, as the host agent would be started."""
    return f"cd {far(host.workdir)} 2>/dev/null; exec {environment(host)}{far(host.python)} -m {MODULE}"
