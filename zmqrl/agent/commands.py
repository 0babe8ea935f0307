"""What the launcher says to a host agent: JSON lines on its stdin."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from zmqrl.errors import WireError
from zmqrl.logs.lines import command_of

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

    def read(self) -> list[Mapping[str, Any]]:
        """Commands that came since the last call; lines that are none are counted in `refused`."""
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return []
        self.ended = not chunk or len(self._unread) > MOST_UNREAD_BYTES
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [command for line in lines if (command := self._parsed(line)) is not None]

    def _parsed(self, line: bytes) -> Mapping[str, Any] | None:
        try:
            name, command = command_of(line)
        except WireError as error:
            self.refused[error.reason] += 1
            return None
        return {**command, "command": name}
