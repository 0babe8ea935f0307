"""The end of a log."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_BYTES = 8_192
TAIL_LINES = 60
"""A traceback of what a user's env raised and of what was made of it."""


def tail_of(log: Path, since_byte: int = 0) -> tuple[str, ...]:
    """Its last lines; lines before `since_byte` are left out, unless the log was emptied since."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(since_byte if since_byte <= end else 0, end - TAIL_BYTES))
        return tuple(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
