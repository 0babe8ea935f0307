"""Limits of the machine and of cgroups: planted trees of both versions, and real groups of this machine."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cgroups import group_or_skip
from zmqrl import capacity

GB, MB = 1 << 30, 1 << 20
V1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + "".join(
    f"3{n} 31 0:3{n} / /sys/fs/cgroup/{name} rw shared:9 - cgroup cgroup rw,{name}\n"
    for n, name in enumerate(("cpu,cpuacct", "memory"))
)
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def planted(root: Path, mounts: str, own: str, files: Mapping[str, object]) -> Path:
    """The root of a file system in which this process is in the cgroups `own`, on a machine with 8 GB available."""
    texts = {"proc/self/mountinfo": mounts, "proc/self/cgroup": own, "proc/meminfo": f"MemAvailable: {8 * MB} kB\n"}
    for name, text in {**texts, **{f"sys/fs/cgroup/{file}": text for file, text in files.items()}}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


CORES = {
    "no cgroups": ("", "", {}, 16),
    "v2": (V2, "0::/a", {"a/cpu.max": "200000 100000"}, 2),
    "v2, an ancestor": (V2, "0::/a/b/c", {"a/cpu.max": "300000 100000", "a/b/c/cpu.max": "max 100000"}, 3),
    "v2, the least of several": (V2, "0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "50000 10000"}, 3),
    "v2, half a core": (V2, "0::/a", {"a/cpu.max": "50000 100000"}, 1),
    "v2, rounded down": (V2, "0::/a", {"a/cpu.max": "250000 100000"}, 2),
    "v2, in a container": (V2, "0::/", {"cpu.max": "400000 100000"}, 4),
    "v2, a part of the tree": (V2.replace(" / ", " /d/1 "), "0::/d/1/x", {"x/cpu.max": "400000 100000"}, 4),
    "v2, outside of the tree": (V2.replace(" / ", " /d/1 "), "0::/../2", {"cpu.max": "400000 100000"}, 4),
    "v1": (
        V1,
        "3:cpu,cpuacct:/a/b\n2:memory:/other",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": 500000, "cpu,cpuacct/a/cpu.cfs_period_us": 100000},
        5,
    ),
    "v1 without a quota": (
        V1,
        "3:cpu,cpuacct:/a",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": -1, "cpu,cpuacct/a/cpu.cfs_period_us": 100000},
        16,
    ),
    "another mount point": (
        V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/my\\040groups "),
        "0::/a",
        {"my groups/a/cpu.max": "200000 100000"},
        2,
    ),
}


@pytest.mark.parametrize("name", CORES)
def test_usable_cores(tmp_path: Path, name: str) -> None:
    mounts, own, files, expected = CORES[name]
    assert capacity.usable_cores(planted(tmp_path, mounts, own, files)) == expected


def test_two_threads_of_a_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 10})
    assert capacity.usable_cores(tmp_path) == 5, "the machine does not name the threads of a core"
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3"), (10, "10"), (4, "4")):
        path = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(siblings + "\n")
    assert capacity.usable_cores(tmp_path) == 3


def stat(prefix: str = "", **values: int) -> str:
    return "\n".join(f"{prefix}{name} {value}" for name, value in values.items())


MEMORY = {
    "no cgroups": ("", "", {}, 8 * GB),
    "v2": (V2, "0::/a", {"a/memory.max": 3 * GB, "a/memory.current": GB}, 2 * GB),
    "v2, an ancestor": (
        V2,
        "0::/a/b",
        {"a/memory.max": 3 * GB, "a/memory.current": GB, "a/b/memory.max": "max", "a/b/memory.current": 5},
        2 * GB,
    ),
    "v2, a soft limit": (V2, "0::/a", {"a/memory.max": "max", "a/memory.high": 2 * GB, "a/memory.current": GB}, GB),
    "v2, cache": (
        V2,
        "0::/a",
        {
            "a/memory.max": 2 * GB,
            "a/memory.current": 2 * GB,
            "a/memory.stat": stat(active_file=GB // 2, inactive_file=GB // 2, slab_reclaimable=MB, shmem=GB),
        },
        GB + MB,
    ),
    "v1, nested": (
        V1,
        "2:memory:/a/job",
        {
            "memory/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000,
            "memory/memory.usage_in_bytes": 20 * GB,
            "memory/a/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000,
            "memory/a/memory.usage_in_bytes": GB,
            "memory/a/job/memory.limit_in_bytes": 700 * MB,
            "memory/a/job/memory.usage_in_bytes": 100 * MB,
        },
        600 * MB,
    ),
    "v1, cache of groups below": (
        V1,
        "2:memory:/a/job",
        {
            "memory/a/memory.limit_in_bytes": 700 * MB,
            "memory/a/memory.usage_in_bytes": 690 * MB,
            "memory/a/memory.stat": stat(inactive_file=0) + "\n" + stat("total_", inactive_file=650 * MB),
        },
        660 * MB,
    ),
    "over its limit": (V2, "0::/a", {"a/memory.max": GB, "a/memory.current": GB + MB}, 0),
}


@pytest.mark.parametrize("name", MEMORY)
def test_available_bytes(tmp_path: Path, name: str) -> None:
    mounts, own, files, expected = MEMORY[name]
    assert capacity.available_bytes(planted(tmp_path, mounts, own, files)) == expected


def printed(expression: str, *groups: Path) -> int:
    """Value in a process of these cgroups."""
    enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    code = f"from zmqrl.capacity import *; print({expression})"
    command = ["sh", "-c", f'{enter}; exec "$@"', "sh", sys.executable, "-c", code]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_real_groups() -> None:
    with group_or_skip("cpu", cpus=1.0, nested=True) as cpu, group_or_skip("memory", nbytes=300 * MB) as memory:
        assert printed("usable_cores()", cpu) == 1
        assert 200 * MB < printed("available_bytes()", memory) <= 300 * MB


def full(kind: int = errno.ENOSPC) -> OSError:
    return OSError(kind, os.strerror(kind), "/d/file")


def test_a_full_disk_has_its_bytes_and_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((1, 10**6, 1, 1, 3, 60, 0, 0, *found[8:])))
    assert capacity.disk_error(full(errno.EACCES), tmp_path) == "Permission denied"
    text = capacity.disk_error(full(), tmp_path / "not" / "there")
    assert "(3.0 MB and 0 inodes free" in text and f"df -i {tmp_path}" in text
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((1, 10**6, 1, 1, 0, 0, 0, 0, *found[8:])))
    assert capacity.disk_error(full(), tmp_path) == "No space left on device (0.0 MB free)", "as btrfs"
    assert capacity.free_inodes(tmp_path) is None
