"""Commands of the launcher to a host agent: JSON lines on its stdin."""

from __future__ import annotations

import os
from collections import Counter

from zmqrl.errors import WireError
from zmqrl.messages.agent import Command
from zmqrl.messages.lines import command

READ_BYTES = 65_536
MOST_UNREAD_BYTES = 16 << 20


class Commands:
    """Owned by the agent's main thread; never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        """The launcher is gone, or has closed the connection."""
        self.refused: Counter[str] = Counter()
        """By reason."""
        self._unread = b""
        os.set_blocking(fd, False)

    def read(self) -> list[Command]:
        """Commands that came since the last call; lines that are none are counted in `refused`."""
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return []
        self.ended = not chunk or len(self._unread) > MOST_UNREAD_BYTES
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [found for line in lines if (found := self._parsed(line)) is not None]

    def _parsed(self, line: bytes) -> Command | None:
        try:
            return command(line)
        except WireError as error:
            self.refused[error.reason] += 1
            return None
