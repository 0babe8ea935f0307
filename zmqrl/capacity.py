"""Cores, memory and room on disks that this process may use: of the machine, and of every cgroup that it is in.

A cgroup limits a process of it and of every cgroup below. Both versions may be mounted, at any place, in a container
also a part of the tree. `root`: of the file system; another one in tests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
TOPOLOGY = "sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list"
MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable")
"""Cache that the kernel frees when a process of the cgroup needs memory, as `memory.stat` names it."""

FEW_INODES = 16
"""Also counts as full: the writer that failed has removed its temporary file since."""


def usable_cores(root: Path = ROOT) -> int:
    """Cores of the affinity, two threads of one core counted once, or fewer by the CPU quota of a cgroup; at least 1.

    A quota is rounded down: processes on a part of a core wait for each other.
    """
    usable = os.sched_getaffinity(0)
    siblings = {_text(path) for path in root.glob(TOPOLOGY) if int(path.parts[-3].removeprefix("cpu")) in usable}
    quotas = [quota for folder in _cgroups(root, "cpu") if (quota := _quota(folder)) is not None]
    return max(1, int(min([len(siblings) or len(usable), *quotas])))


def available_bytes(root: Path = ROOT) -> int:
    """Memory that this process may still take: MemAvailable, and what every cgroup leaves, cache counted as free."""
    left = [room for folder in _cgroups(root, "memory") if (room := _memory_left(folder)) is not None]
    return max(0, min([_mem_available(root), *left]))


def free_inodes(folder: Path) -> int | None:
    """Files that may still be created on the disk of `folder`; None where its file system has no limit."""
    found = os.statvfs(folder)
    return found.f_favail if found.f_files else None


def disk_error(error: OSError, path: str | Path) -> str:
    """Text of an error of writing to `path`; of a full disk with the bytes and inodes that are left."""
    text = error.strerror or str(error)
    if error.errno != errno.ENOSPC:
        return text
    try:
        folder = next(parent for parent in (Path(path), *Path(path).absolute().parents) if parent.is_dir())
        found, inodes = os.statvfs(folder), free_inodes(folder)
    except OSError:
        return text
    left = f"{found.f_bavail * found.f_frsize / 1e6:.1f} MB" + ("" if inodes is None else f" and {inodes} inodes")
    few = inodes is not None and inodes < FEW_INODES
    return f"{text} ({left} free{f': delete files; list inodes: df -i {folder}' if few else ''})"


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the cgroups that this process is in and `controller` may limit, from the innermost outwards."""
    own: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)  # version 2 has no names of controllers
    for top, (tree, names) in _cgroup_mounts(root).items():
        for name in {"", controller} & own.keys() & names:
            below = Path(own[name])
            if not below.is_relative_to(tree) or ".." in below.parts:
                below = Path(tree)  # outside of the part that is mounted
            folder = root / top.lstrip("/")
            parts = below.relative_to(tree).parts
            yield from (folder.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _cgroup_mounts(root: Path) -> dict[str, tuple[str, set[str]]]:
    """Mount points of cgroups: which part of the tree, and the controllers; a later mount hides an earlier one."""
    found: dict[str, tuple[str, set[str]]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        place, _, mount = line.partition(" - ")
        tree, top = (word.encode().decode("unicode_escape") for word in place.split(" ")[3:5])  # \040 is a space
        kind, *_, options = mount.split(" ")
        found.pop(top, None)
        if kind in ("cgroup", "cgroup2"):
            found[top] = (tree, {""} if kind == "cgroup2" else set(options.split(",")))
    return found


def _quota(folder: Path) -> float | None:
    """CPUs that a cgroup may use at a time; None without a limit."""
    words = _text(folder / "cpu.max") or f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
    try:
        quota, period = map(int, words.split())
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory_left(folder: Path) -> int | None:
    """Bytes that a cgroup may still take; None without a limit. Version 1 has the sum of a subtree as `total_`."""
    limits = [int(text) for name in MEMORY_LIMITS if (text := _text(folder / name)).isdigit()]
    used = [int(text) for name in MEMORY_USED if (text := _text(folder / name)).isdigit()]
    if not limits or not used:
        return None
    stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    cache = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in RECLAIMABLE)
    return min(limits) - max(0, used[0] - cache)


def _mem_available(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
