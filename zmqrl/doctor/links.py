"""A probe that is spoken with, on this machine or on another host."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import HostSection
from zmqrl.errors import WireError
from zmqrl.messages.doctor import Order, Word, order_line, read_word
from zmqrl.orchestrators.host_commands import environment
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.ssh.shell import HostShell

MODULE = "zmqrl.doctor.probe"
LOOPBACK = "127.0.0.1"
END_S = 2.0
STDERR_TAIL = 4000


class Link(ABC):
    """One probe. Its reader calls `words`, then `ending` and `release`; another thread calls the rest."""

    accepted: tuple[str, ...] = ()
    """What to report to the user: host keys that were new and are now known."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        """Lines with the mark of messages that are invalid, by reason."""

    def words_in(self, lines: Iterable[str]) -> Iterator[Word]:
        """The messages in `lines`; a malformed one is counted, other output is ignored."""
        for line in lines:
            try:
                word = read_word(line)
            except WireError as error:
                self.refused[error.reason] += 1
                continue
            if word is not None:
                yield word

    @abstractmethod
    def send(self, order: Order) -> None:
        """Never blocks; no error when the probe is gone: `words` ends then."""

    @abstractmethod
    def words(self) -> Iterator[Word]:
        """Its messages, until it ends or the connection is lost."""

    @abstractmethod
    def ending(self) -> tuple[int | None, str]:
        """Exit code (None: not known) and the end of its stderr. After `words` has ended."""

    @abstractmethod
    def carry(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Where this host finds what listens at `addresses` and `ports`: there, or at a tunnel's end. HostFailed."""

    @abstractmethod
    def hang_up(self) -> None:
        """End the probe, and so `words`; bounded. Safe when it has ended."""

    @abstractmethod
    def release(self) -> None:
        """Give everything back, once the probe has ended."""


class ShellLink(Link):
    """The probe on a host that a shell reaches. Owns the shell."""

    def __init__(self, shell: HostShell, command: str, tunnel: bool = False, learner_is_here: bool = True) -> None:
        """Start `command`.

        Args:
            shell: Of the host.
            command: The line of the shell that runs the probe.
            tunnel: The host reaches what listens elsewhere through ports of its own.
            learner_is_here: Such a tunnel needs no address of this machine.
        """
        super().__init__()
        self._shell, self._tunnel, self._learner_is_here = shell, tunnel, learner_is_here
        self.accepted = shell.accepted
        descriptor, name = tempfile.mkstemp(prefix="zmqrl-doctor-", suffix=".log")
        os.close(descriptor)
        self._stderr = Path(name)
        try:
            self._pipe = shell.start(command, self._stderr)
        except BaseException:
            self._stderr.unlink()
            raise

    def send(self, order: Order) -> None:
        self._pipe.write(order_line(order))

    def words(self) -> Iterator[Word]:
        yield from self.words_in(self._pipe.lines())

    def ending(self) -> tuple[int | None, str]:
        code = self._pipe.exit_status(END_S)
        self.hang_up()  # then its stderr is whole
        return code, self._stderr.read_text(errors="replace")[-STDERR_TAIL:]

    def carry(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        if not self._tunnel:
            return tuple(addresses), tuple(ports)
        to = LOOPBACK if self._learner_is_here or not addresses else addresses[0]
        return (LOOPBACK,), tuple(self._shell.forward_back((to, port)) for port in ports)

    def hang_up(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the reader may be releasing it in this moment
            self._pipe.close()

    def release(self) -> None:
        self.hang_up()
        with contextlib.suppress(EOFError, OSError):
            self._shell.close()
        self._stderr.unlink(missing_ok=True)


def link_here(env: Mapping[str, str]) -> ShellLink:
    """The probe as a child of this process, with its interpreter and working directory, and further variables."""
    variables, python = environment(HostSection(env=env)), shlex.quote(sys.executable)
    return ShellLink(PipedShell(LOCAL), f"exec {variables}{python} -m {MODULE}")
