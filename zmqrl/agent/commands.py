"""The launcher's commands as the agent reads them from its stdin."""

from __future__ import annotations

import os
from collections import Counter

from zmqrl.errors import WireError
from zmqrl.messages.command import Command, KillAll, Stop
from zmqrl.messages.lines import command

READ_BYTES = 65_536
MOST_UNREAD_BYTES = 16 << 20
ENDS = (Stop, KillAll)
"""Commands that end this host's part of the run."""


class Commands:
    """Owned by the agent's main thread; never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        """The launcher is gone, or has closed the connection."""
        self.refused: Counter[str] = Counter()
        """Counts of refused lines, by reason."""
        self._unread = b""
        self._received: list[Command] = []
        """Since the last `read`."""
        os.set_blocking(fd, False)

    def read(self) -> list[Command]:
        """Commands that came since the last call, those that end this host first: after them nothing is started.

        Lines that are none are counted in `refused`.
        """
        self._receive()
        received, self._received = self._received, []
        return sorted(received, key=lambda each: not isinstance(each, ENDS))

    def is_end_requested(self) -> bool:
        """Whether the launcher is gone, or a command that `read` is to return ends this host."""
        self._receive()
        return self.ended or any(isinstance(received, ENDS) for received in self._received)

    def _receive(self) -> None:
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        self.ended = not chunk or len(self._unread) > MOST_UNREAD_BYTES
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self._received += [found for line in lines if (found := self._parsed(line)) is not None]

    def _parsed(self, line: bytes) -> Command | None:
        try:
            return command(line)
        except WireError as error:
            self.refused[error.reason] += 1
            return None
