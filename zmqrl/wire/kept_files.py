"""Private files in the user's cache, each with a checksum of its name and content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

from zmqrl.wire.runtime_folder import is_own, make_private, read_own

DIGEST_BYTES = 32
PART, PART_S = ".part", 3600.0
"""Name of a file that is being written, and the age from which one is of a process that was killed."""


def own_cache(name: str) -> Path:
    """The folder `name` in `$ZMQRL_CACHE`, else in `~/.cache/zmqrl`.

    Where it is another user's, as in a shared `$ZMQRL_CACHE`, `name-<uid>` takes its place.
    """
    home = Path("/", os.path.expanduser("~"))  # of a user without one: /~, which cannot be made
    base = os.environ.get("ZMQRL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "zmqrl")
    usual = Path(base, name)
    return usual if is_own(usual) or not os.path.lexists(usual) else Path(base, f"{name}-{os.getuid()}")


def read_kept(path: Path) -> bytes | None:
    """The content that is kept in `path`; None: it is damaged. OSError: there is none of this user."""
    stored = read_own(path)
    content = stored[DIGEST_BYTES:]
    return content if stored == _stored(path, content) else None


def keep(path: Path, content: bytes) -> None:
    """Keep it for later. After a power cut the name has the whole content, or does not exist.

    Raises:
        ConfigError: The folder is not private.
        OSError: It cannot be written.
    """
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(path.parent)
    for part in path.parent.glob(f"*{PART}"):
        with contextlib.suppress(FileNotFoundError):  # another process has finished it
            if time.time() - part.stat().st_mtime > PART_S:
                part.unlink()
    descriptor, name = tempfile.mkstemp(suffix=PART, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_stored(path, content))
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _stored(path: Path, content: bytes) -> bytes:
    """Content of the file: the checksum is also that of the name."""
    return hashlib.sha256(path.stem.encode() + content).digest() + content
