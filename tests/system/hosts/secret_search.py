"""Secret keys of hosts: found where they must be, in the memory of that host's processes, and looked for elsewhere."""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zmq
from zmq.utils import z85

MOST_MAPPED = 256 << 20
PAGEMAP_BYTES, PRESENT_OR_SWAPPED = 8, 62
"""Of a page in /proc/<pid>/pagemap: size of its entry, and the lower one of the two highest bits."""


def assert_each_stays_on_its_host(
    hosts: Mapping[str, Iterable[int]], launcher: int, files: Iterable[Path], shown: Iterable[int]
) -> None:
    """Nothing outside of a host has its secret key.

    What a process has read from its stdin, and what the launcher has written there, is in its memory.

    Args:
        hosts: The run's processes on each host, the agent among them.
        launcher: Its pid.
        files: Everything that the run and its hosts have written.
        shown: Processes whose argv and environment others can see.
    """
    held = {host: list(pids) for host, pids in hosts.items()}
    memory = {pid: _memory_of(pid) for pid in (launcher, *(pid for pids in held.values() for pid in pids))}
    secrets = {host: _secret_in(memory[pid] for pid in pids) for host, pids in held.items()}
    seen = {path: _content_of(path) for path in (*files, *(path for pid in shown for path in _shown_by(pid)))}
    assert any(seen.values())
    for host, secret in secrets.items():
        assert zmq.curve_public(secret) in memory[launcher], "the same search finds the public halves there"
        for form in (secret, z85.decode(secret)):
            elsewhere = [pid for pid, content in memory.items() if form in content and pid not in held[host]]
            assert not elsewhere, f"memory with the secret key of {host}"
            assert not [path for path, content in seen.items() if form in content], f"the secret key of {host}"


def _secret_in(memories: Iterable[bytes]) -> bytes:
    """The one that a host's agent has given to its children, in their boot lines."""
    (secret,) = {found for memory in memories for found in re.findall(rb'"secret": ?"([^"]{40})"', memory)}
    return bytes(secret)


def _shown_by(pid: int) -> list[Path]:
    return [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")]


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _memory_of(pid: int) -> bytes:
    """What a process has in memory that only it has."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", 0) as memory, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_, inode_or_name = line.split()
            if rights.startswith("rw") and rights.endswith("p") and inode_or_name in ("0", "[heap]", "[stack]"):
                start, end = (int(word, 16) for word in span.split("-"))
                if end - start < MOST_MAPPED:
                    for first, last in _used(pagemap, start // mmap.PAGESIZE, end // mmap.PAGESIZE):
                        memory.seek(first * mmap.PAGESIZE)
                        with contextlib.suppress(OSError):  # unmapped since
                            found.append(memory.read((last - first) * mmap.PAGESIZE))
    return b"".join(found)


def _used(pagemap: BinaryIO, begin: int, end: int) -> list[tuple[int, int]]:
    """Spans of the pages that have ever been written to: most of a stack never is."""
    pagemap.seek(begin * PAGEMAP_BYTES)
    pages = np.frombuffer(pagemap.read((end - begin) * PAGEMAP_BYTES), "<u8")
    held = np.concatenate([[False], pages >> PRESENT_OR_SWAPPED != 0, [False]])
    changes = begin + np.flatnonzero(held[1:] != held[:-1])
    return [(int(first), int(last)) for first, last in changes.reshape(-1, 2)]
