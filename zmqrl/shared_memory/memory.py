"""Anonymous shared memory: a memfd has no name, so nothing can be left behind, whatever is killed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from zmqrl.errors import ArenaTooLarge

CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Limit and use, in version 2 and version 1 of cgroups."""
KEEP_FREE = 64 << 20
"""Bytes that an arena leaves to the rest of the machine."""


def available_bytes() -> int:
    """What this process may still take: MemAvailable, and the limit of every cgroup it is in."""
    limits = [_mem_available()]
    for limit, used in CGROUP_FILES:
        limits += [_number(folder / limit) - _number(folder / used) for folder in _cgroups() if _number(folder / limit)]
    return max(0, min(limits))


def check_fits(need: int, setting: str, copy: int = 0) -> None:
    """Raise `ArenaTooLarge` when `need` and `copy` bytes are not available; the user can lower `setting`.

    `copy`: of the replay, for reading or writing FULL.
    """
    there = available_bytes() - KEEP_FREE
    if need + copy > there:
        of_replay = f" and a copy of replay for full checkpoints {copy / 1e6:.0f} MB" if copy else ""
        raise ArenaTooLarge(
            f"the arena needs {need / 1e6:.0f} MB of memory{of_replay}, and {max(0, there) / 1e6:.0f} MB are "
            f"available: lower {setting}"
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


def _mem_available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroups() -> list[Path]:
    """Folders of this process's cgroup and its parents (v2), and the root of v1."""
    root = Path("/sys/fs/cgroup")
    folders = [root]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    for line in lines:
        path = root / line.split(":", 2)[2].lstrip("/")
        folders += [p for p in (path, *path.parents) if root in (p, *p.parents)]
    return folders


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return 0
