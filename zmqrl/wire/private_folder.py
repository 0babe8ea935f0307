"""Directories that only this user can enter, in places that every user can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zmqrl.errors import ConfigError


def make_private(folder: Path) -> None:
    """Make `folder` with mode 0700, if it is not there; the directory that it is in must exist.

    Raises:
        ConfigError: Something is there that another user owns or can enter.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{folder} is not private to this user: remove it, or run `chmod 700 {folder}`") from None
