"""Anonymous shared memory: a memfd has no name, so nothing can be left behind, whatever is killed."""

from __future__ import annotations

import mmap
import os

from zmqrl.capacity import available_bytes
from zmqrl.errors import ArenaTooLarge

KEEP_FREE = 64 << 20
"""Bytes that an arena leaves to the rest of the machine."""


def check_fits(need: int, setting: str, copy: int = 0) -> None:
    """Raise `ArenaTooLarge` when `need` and `copy` bytes are not available; the user can lower `setting`.

    `copy`: of the replay, for reading or writing FULL.
    """
    there = available_bytes() - KEEP_FREE
    if need + copy > there:
        of_replay = f" and a copy of replay for full checkpoints {copy / 1e6:.0f} MB" if copy else ""
        raise ArenaTooLarge(
            f"the arena needs {need / 1e6:.0f} MB of memory{of_replay}, and {max(0, there) / 1e6:.0f} MB are available",
            fix=f"lower {setting}",
        )


def create(name: str, nbytes: int) -> int:
    """A memfd of `nbytes`, every page reserved, so that a later write cannot fail."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise ArenaTooLarge(f"the arena's {nbytes / 1e6:.0f} MB could not be reserved: {error}") from error
    return fd


def attach(fd: int, nbytes: int) -> mmap.mmap:
    """Map an inherited memfd."""
    return mmap.mmap(fd, nbytes, mmap.MAP_SHARED)


def private(nbytes: int) -> mmap.mmap:
    """The same, seen by this process alone."""
    return mmap.mmap(-1, nbytes)
