"""A file that records are appended to; what cannot be written now is kept, and written with the next record."""

from __future__ import annotations

import os
from pathlib import Path

MOST_PENDING_BYTES = 4_000_000
"""While so much waits for the disk, further records are left out."""


class AppendFile:
    """Opened at the first write, and again after an error. Its bytes keep their order, so no record is torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._pending = bytearray()

    def write(self, record: bytes) -> None:
        """Append `record` to what waits, and write all of it.

        Raises:
            OSError: Not everything is written; the next `write` or `flush` continues.
        """
        if len(self._pending) < MOST_PENDING_BYTES:
            self._pending += record
        self.flush()

    def flush(self) -> None:
        """Write what waits. Raises OSError as `write` does."""
        try:
            while self._pending:
                del self._pending[: os.write(self._descriptor(), self._pending)]
        except OSError:
            self._release()
            raise

    def close(self) -> None:
        """Write what waits and close the file. Raises OSError as `write` does. Safe to call twice."""
        self.flush()
        self._release()

    def _descriptor(self) -> int:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._fd

    def _release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
