"""The pipe on which a process reports events, read by the test."""

from __future__ import annotations

import json
import os
import select
from typing import Any


class EventPipe:
    """Closed by `close`, both ends."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()

    def read(self, timeout_s: float) -> list[dict[str, Any]]:
        """What was reported since; the first within `timeout_s`, none if nothing was."""
        if not select.select([self._read_fd], [], [], timeout_s)[0]:
            return []
        return [json.loads(line) for line in os.read(self._read_fd, 65_536).splitlines()]

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self.write_fd)
