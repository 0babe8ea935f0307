"""Process information from the kernel. A process is named by pid and start time, never by its command line."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MB = 1e6


class ProcessId(NamedTuple):
    """Names one process for ever: pids come back, pid and start time together do not."""

    pid: int
    start_time: int
    """Clock ticks after boot, field 22 of `/proc/<pid>/stat`."""


class _Stat(NamedTuple):
    state: str
    parent: int
    session: int
    cpu_ticks: int
    start_time: int


def _stat(pid: int) -> _Stat | None:
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the name, in parentheses, may contain any byte: the kernel cuts it after 15
    fields = content.rpartition(b")")[2].decode("ascii").split()
    return _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[11]) + int(fields[12]), int(fields[19]))


def identify(pid: int) -> ProcessId | None:
    """The identity of a process that exists now, also of a zombie."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat.start_time)


def cause_of(code: int) -> str:
    """How a process ended, by its exit code; negative: the signal."""
    if code >= 0:
        return f"exit code {code}"
    known = {int(number): number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"  # real-time signals have no names


def is_alive(process: ProcessId) -> bool:
    """Whether this process still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_time == process.start_time and stat.state not in "ZX"


def is_stopped(process: ProcessId) -> bool:
    """Whether it was halted (SIGSTOP, a debugger): it sends no message until it is continued."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_time == process.start_time and stat.state in "Tt"


def held_by_kernel(process: ProcessId) -> bool:
    """Whether it waits where no signal is received (state D): for a disk, for a server of files."""
    stat = _stat(process.pid)
    return stat is not None and stat.start_time == process.start_time and stat.state == "D"


def children_of(pid: int) -> list[ProcessId]:
    """Processes whose parent this is, also zombies."""
    stats = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [ProcessId(child, stat.start_time) for child, stat in stats if stat is not None and stat.parent == pid]


def session_members(session: int) -> list[ProcessId]:
    """Running processes of a session: also processes that a user's env started."""
    found = []
    for name in os.listdir("/proc"):
        stat = _stat(int(name)) if name.isdigit() else None
        if stat is not None and stat.session == session and stat.state not in "ZX":
            found.append(ProcessId(int(name), stat.start_time))
    return found


def cpu_seconds(pid: int) -> float | None:
    """User and system time so far; None when the process is gone."""
    stat = _stat(pid)
    return None if stat is None else stat.cpu_ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float | None:
    """Proportional set size in 10^6 bytes; None when the process has exited or belongs to another user."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024 / MB
    except OSError:
        return None
    return None


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal this process, through a pidfd, so that a reused pid is never hit.

    Returns:
        False when it was gone, or is another user's.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)


def kill(process: ProcessId) -> bool:
    """SIGKILL this process. False when it was gone."""
    return send(process, signal.SIGKILL)


def await_gone(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait until all have ended, also those that are not our children; returns who is still alive after `timeout_s`."""
    until = time.monotonic() + timeout_s
    alive = [process for process in processes if is_alive(process)]
    for process in alive:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(max(0.0, until - time.monotonic()) * 1000)
        finally:
            os.close(pidfd)
    return [process for process in alive if is_alive(process)]
