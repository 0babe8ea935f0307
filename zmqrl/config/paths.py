"""Paths that a user wrote, and files that may be of another user."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from zmqrl.errors import ConfigError, key_of

MOST_BYTES = 1 << 26
"""More than any file of a run whose whole content is read."""


def expanded(path: str | os.PathLike[str], key: str = "", source: str = "") -> Path:
    """`path` with the home directory in the place of `~` or `~user`.

    `key`: the key, option or argument that has it. `source`: where it was written.

    Raises:
        ConfigError: This machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = str(path)[1:].partition("/")[0]
        what = f"no user {user!r} on this machine" if user else "the home directory is unknown; set HOME"
        raise ConfigError(what, key=key_of(key) if key else (), value=repr(str(path)), source=source) from error


def regular(path: str, flags: int) -> int:
    """An `opener` of `open` that waits for no pipe. OSError: `path` is neither a file nor a folder."""
    file = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` itself refuses a folder
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a regular file", path)


def no_link(path: str, flags: int) -> int:
    """An `opener` as `regular` that follows no link either."""
    return regular(path, flags | os.O_NOFOLLOW)


def content_of(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file; a pipe or a device in its place, or a larger file, is an OSError."""
    with open(path, "rb", opener=regular) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes:,} bytes", str(path))
    return content
