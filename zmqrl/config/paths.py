"""Paths that a user wrote."""

from __future__ import annotations

import os
from pathlib import Path

from zmqrl.errors import ConfigError, key_of


def expanded(path: str | os.PathLike[str], key: str = "", source: str = "") -> Path:
    """`path` with the home directory in the place of `~` or `~user`.

    Args:
        path: As it was written.
        key: The key, option or argument that has it.
        source: Where it was written.

    Raises:
        ConfigError: This machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = str(path)[1:].partition("/")[0]
        what = f"no user {user!r} on this machine" if user else "the home directory is unknown; set HOME"
        raise ConfigError(what, key=key_of(key) if key else (), value=repr(str(path)), source=source) from error
