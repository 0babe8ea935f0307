"""What others do on a host with `hosts.NAME.yield_when`: the load without this run's processes, input on terminals."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

from zmqrl.messages.agent import OtherUse

MEAN_S = 60.0
"""Time constant of the mean, as that of the 1-minute load average."""
BUSY = ("R", "D")
TERMINALS = ("/dev/pts/[0-9]*", "/dev/tty[0-9]*")


class OtherUseMeter:
    """Sampled by the agent every few seconds."""

    def __init__(self, now: float) -> None:
        """`now` in monotonic seconds."""
        self._sampled_at, self._load = now, 0.0

    def sample(self, now: float) -> OtherUse:
        """The threads that run now, or wait for a disk, without those of the agent and its descendants."""
        keep = math.exp(-max(0.0, now - self._sampled_at) / MEAN_S)
        others = _busy_threads() - sum(_busy_threads_of(pid) for pid in _own())
        self._load, self._sampled_at = self._load * keep + others * (1 - keep), now
        return OtherUse(round(max(0.0, self._load), 2), input_idle_s(time.time()))


def input_idle_s(now: float, folder: Path = Path("/")) -> float | None:
    """Seconds since the last input on a terminal, by unix time `now`; None: no user has one.

    The kernel writes the time of a read of a terminal, at most every 8 s, as its access time. An SSH session without
    a terminal, such as those of zmqrl, has none. A console belongs to root until a user logs in there.
    """
    found = []
    for pattern in TERMINALS:
        for path in folder.glob(pattern.removeprefix("/")):
            try:
                terminal = path.stat()
            except OSError:
                continue
            if terminal.st_uid != 0 or path.parent.name == "pts":
                found.append(terminal.st_atime)
    return None if not found else round(max(0.0, now - max(found)), 1)


def _busy_threads() -> int:
    """Number of busy threads of the whole machine."""
    found = 0
    for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
        name, *values = line.split()
        if name in ("procs_running", "procs_blocked"):
            found += int(values[0])
    return found


def _own() -> Iterator[int]:
    """The agent and all below it, also the processes of envs."""
    import psutil  # only where a host yields

    yield os.getpid()
    yield from (process.pid for process in psutil.Process().children(recursive=True))


def _busy_threads_of(pid: int) -> int:
    found = 0
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found += path.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1] in BUSY
        except OSError:  # it has ended
            continue
    return found
