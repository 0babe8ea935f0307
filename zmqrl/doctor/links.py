"""A probe that is spoken with: as a child process on this machine, or over SSH."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from zmqrl.errors import WireError
from zmqrl.messages.doctor import Order, Word, order_line, read_word

MODULE = "zmqrl.doctor.probe"
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


class LocalLink(Link):
    """The probe as a child of this process, with its interpreter."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - held as long as the process runs
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **env},
        )

    def send(self, order: Order) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(order_line(order))
            self._process.stdin.flush()

    def words(self) -> Iterator[Word]:
        assert self._process.stdout is not None
        yield from self.words_in(line.decode(errors="replace").rstrip("\n") for line in self._process.stdout)

    def ending(self) -> tuple[int | None, str]:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return None, ""
        self._stderr.seek(0)
        return code, self._stderr.read().decode(errors="replace")[-STDERR_TAIL:]

    def carry(self, addresses: Sequence[str], ports: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        return tuple(addresses), tuple(ports)

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def release(self) -> None:
        self.hang_up()
        self._process.wait(END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stderr.close()
