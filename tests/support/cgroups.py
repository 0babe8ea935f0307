"""Cgroups of a test with limits, of version 1 or 2, where this machine lets root make some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import until

MOUNTS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
MB = 1 << 20


@contextmanager
def group_or_skip(
    controller: str, cpus: float | None = None, nbytes: int | None = None, nested: bool = False
) -> Iterator[Path]:
    """A cgroup limited to `cpus` or `nbytes`, or with `nested` one below it. The test is skipped without."""
    is_first = (MOUNTS / controller).is_dir()
    top = (MOUNTS / controller if is_first else MOUNTS) / f"zmqrl-test-{os.getpid()}"
    quota = str(int((cpus or 0) * PERIOD_US))
    limits = {"memory.limit_in_bytes" if is_first else "memory.max": str(nbytes)} if nbytes else {}
    if cpus:
        v1 = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
        limits |= v1 if is_first else {"cpu.max": f"{quota} {PERIOD_US}"}
    group = top / "job" if nested else top
    try:
        if not is_first:
            (MOUNTS / "cgroup.subtree_control").write_text(f"+{controller}")
        group.mkdir(parents=True)
        for file, text in limits.items():
            (top / file).write_text(text)
    except OSError as error:
        for folder in {group, top}:
            if folder.is_dir():
                folder.rmdir()
        pytest.skip(f"no cgroup of {controller} can be made here: {error}")
    try:
        yield group
    finally:
        for folder in dict.fromkeys((group, top)):
            until(lambda folder=folder: _removed(folder), f"the last process of {folder} to end")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
