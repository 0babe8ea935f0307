"""The mark of a process of a run, which all that it starts inherits, whatever its environment, session or descriptors.

It is the soft limit RLIMIT_LOCKS, which limits nothing since Linux 2.4.25. The kernel copies it at each fork and keeps
it over exec. The host agent sets it before user code runs in the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from collections.abc import Iterator

from zmqrl.supervision.process_table import ProcessId, identify, is_alive

RLIMIT_LOCKS = 10
"""The module `resource` does not name it."""
FLAG, HASH_BYTES, NUMBER_BITS = 1 << 62, 5, 20
TEMPLATE_NUMBER = (1 << NUMBER_BITS) - 1
"""Number of the template of a host."""


def process_mark(run_id: str, host: str, number: int) -> int:
    """The mark of the `number`-th process that the agent of `host` has started."""
    place = int.from_bytes(hashlib.sha256(f"{run_id}/{host}".encode()).digest()[:HASH_BYTES], "big")
    return FLAG | place << NUMBER_BITS | number % (1 << NUMBER_BITS)


def set_mark(pid: int, mark: int) -> None:
    """Mark a child of this process. Where its hard limit is lower it gets none."""
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(pid, RLIMIT_LOCKS, (mark, resource.prlimit(pid, RLIMIT_LOCKS)[1]))


def mark_in(pid: int) -> int:
    """0: it has none, is gone, or belongs to another user."""
    try:
        limit = resource.prlimit(pid, RLIMIT_LOCKS)[0]
    except OSError:
        return 0
    return limit if limit >= FLAG else 0


def marked() -> Iterator[tuple[ProcessId, int]]:
    """Running processes with a mark of any run. OSError: no descriptor is left at the moment."""
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit() and mark_in(int(name))):
        process, mark = identify(pid), mark_in(pid)
        if process is not None and mark and is_alive(process):  # it is the very process that was looked at
            yield process, mark


def marked_by_host(run_id: str, host: str) -> Iterator[ProcessId]:
    """Running processes of the run that the agent of `host` has started, and all that they have started."""
    place = process_mark(run_id, host, 0) >> NUMBER_BITS
    return (process for process, mark in marked() if mark >> NUMBER_BITS == place)
