"""Paths that a user wrote."""

from __future__ import annotations

import os
from pathlib import Path

from zmqrl.errors import ConfigError


def expanded(path: str | os.PathLike[str], place: str = "") -> Path:
    """`path` with the home directory in the place of `~` or `~user`.

    Args:
        path: As it was written.
        place: The key or option for the message.

    Raises:
        ConfigError: This machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = str(path)[1:].partition("/")[0]
        what = f"no user {user!r} on this machine" if user else "the home directory is unknown; set HOME"
        raise ConfigError(f"{place}{': ' if place else ''}{str(path)!r}: {what}") from error
