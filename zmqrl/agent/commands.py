"""What the launcher says to a host agent: JSON lines on its stdin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

READ_BYTES = 65_536
MOST_UNREAD_BYTES = 16 << 20


class Commands:
    """Owned by the agent's main thread; never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        """The launcher is gone, or has closed the connection."""
        self._unread = b""
        os.set_blocking(fd, False)

    def read(self) -> list[Mapping[str, Any]]:
        """Whole lines that came since the last call; what is no JSON object is left out."""
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return []
        self.ended = not chunk or len(self._unread) > MOST_UNREAD_BYTES
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [command for line in lines if (command := _parsed(line)) is not None]


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        command = json.loads(line)
    except ValueError:
        return None
    return command if isinstance(command, dict) else None
