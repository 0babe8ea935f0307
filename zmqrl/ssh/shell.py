"""A shell of a host, of any kind of orchestrator: commands that end, and programs that stay, such as the host agent."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqrl.errors import HostFailed

LONGEST_LINE = 16_000_000
ANSWER_S = 8.0
"""How long the first answer of a host may take."""
HANGS = (
    "possible causes: a shell start-up file that waits, an unresponsive file server, low memory; "
    "check: {there} 'uptime; df; dmesg | tail'"
)
OUTPUT_LINES, OUTPUT_CHARACTERS = 5, 300
"""Limits of the output of a login shell in a message."""
_ESCAPES = re.compile(r"\x1b(\][^\x07\x1b]*(\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|.)")
"""Sequences of a terminal: titles, colours, movements."""


@dataclass(frozen=True)
class Finished:
    """How a command ended. `code` is -1 when a signal or the loss of the connection ended it."""

    code: int
    stdout: bytes
    stderr: bytes


def after_mark(line: str, mark: str) -> str | None:
    """What follows `mark` in a line, which text of a login shell may have begun; None when the mark is not in it."""
    _, found, text = line.partition(mark)
    return text if found else None


def printed(lines: Iterable[str]) -> str:
    """What a login shell printed, in one line, without what would move a terminal's cursor or set its title."""
    plain = ("".join(c for c in _ESCAPES.sub("", line) if c.isprintable()).strip() for line in lines)
    return " / ".join(line for line in plain if line)[-OUTPUT_CHARACTERS:]


class Pipe(ABC):
    """A program on a host, with its stdin and stdout. It must end when its stdin ends.

    `write` may be called from any thread, `lines` from one.
    """

    unfinished = b""
    """What it has written after its last whole line. Any thread."""

    def split(self, chunks: Iterable[bytes]) -> Iterator[str]:
        """The lines in `chunks`; the last one may lack its end."""
        for chunk in chunks:
            *whole, rest = (self.unfinished + chunk).split(b"\n")
            self.unfinished = rest if len(rest) <= LONGEST_LINE else b""  # no line of ours is as long
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
        last, self.unfinished = self.unfinished, b""
        if last:
            yield last.decode(errors="replace")

    @abstractmethod
    def write(self, data: bytes) -> None:
        """To its stdin; never blocks; no error when it has ended. HostFailed when it has not read for long."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """Lines of its stdout, without their ends, until it ends."""

    @abstractmethod
    def exit_status(self, timeout_s: float) -> int | None:
        """Its exit code; None while it runs."""

    def terminate(self) -> None:
        """End a program that has nothing to lose, without waiting for its end."""
        self.close()

    def kill(self) -> None:
        """End a program that does not end on its own; what is left of it is found by `HostShell.run`."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End its stdin and let go; bounded. Safe to call twice."""


class HostShell(ABC):
    """Runs commands on one host, while the program that it has started runs. Its methods may be called from any thread.

    A command is a line for `sh` or for a login shell of any kind.
    """

    @property
    def accepted(self) -> tuple[str, ...]:
        """What to report to the user: host keys that were unknown and are now accepted."""
        return ()

    def check_answer(self) -> None:
        """HostFailed for a host that can be logged into and executes no command. An engine may take its time."""
        return

    def is_alive(self) -> bool:
        """Whether its connection holds, as far as that is known."""
        return True

    def renewed(self) -> HostShell:
        """This shell, or another one of the host where the connection was cut. HostFailed."""
        return self

    @abstractmethod
    def run(self, command: str, timeout_s: float) -> Finished:
        """Run a line of the shell there, and wait for its end. HostFailed after `timeout_s` seconds."""

    @abstractmethod
    def start(self, command: str, stderr: Path) -> Pipe:
        """Start a line of the shell that stays; its stderr is appended to the file. HostFailed."""

    def forward_back(self, to: Sequence[tuple[str, int]]) -> int:
        """A port on the loopback of the host that leads to the first of `to` that answers, as this machine sees them.

        HostFailed when this kind of shell has no tunnels.
        """
        raise HostFailed(
            f"{to[0][0]}:{to[0][1]}", "this kind of orchestrator does not support tunnels", "remove tunnel: true"
        )

    @abstractmethod
    def close(self) -> None:
        """Give the connection back."""


class FileShell(HostShell):
    """A shell of a host that also copies files."""

    host: str
    """Name of the host."""

    @abstractmethod
    def put(self, content: bytes | Path, path: str) -> None:
        """Write a file there, at once; its folders are made. HostFailed."""

    @abstractmethod
    def get(self, path: str, target: Path) -> None:
        """Copy a file to here. HostFailed."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a folder there and all in it. HostFailed."""
