"""The mark of a host on all that its command line starts, and what a pid namespace between the two hides.

`hosts.NAME.wrap` may start the host agent in a pid namespace, where pids are others than outside. The mark names the
namespace outside: the reaper, which runs there, separates processes of its own machine from those of a container that
is another host, and uses its own pids only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from zmqrl.supervision.process_table import identify

RUN_VARIABLE = "ZMQRL_RUN"
"""The run that a process belongs to."""
HOST_VARIABLE = "ZMQRL_HOST"
"""`HOST@NAMESPACE`: the host's name in the run, and the pid namespace outside of `wrap`."""
NO_RUN = "-"
"""Placeholder for the run id: an agent of no run, which examines its host."""
PID_NAMESPACE = "/proc/self/ns/pid"
STDIN_ENDED = "zmqrl: stdin was at its end before the handshake"
FOREIGN_PROC = "zmqrl: /proc shows the processes of another pid namespace"


class HostMark(NamedTuple):
    """The value of `HOST_VARIABLE`."""

    host: str
    namespace: str

    @classmethod
    def parse(cls, value: str) -> HostMark:
        """Parts are empty where `value` lacks them."""
        host, _, namespace = value.partition("@")
        return cls(host, namespace)


def pid_namespace() -> str:
    """The pid namespace of this process, as the kernel names it."""
    return os.readlink(PID_NAMESPACE)


def inner_namespace() -> str:
    """The pid namespace that `wrap` has made around this process; empty where it shares that of its host."""
    mark = HostMark.parse(os.environ.get(HOST_VARIABLE, ""))
    own = pid_namespace()
    return own if mark.namespace and mark.namespace != own else ""


def has_own_proc() -> bool:
    """Whether /proc shows the pid namespace of this process: pid, start time and session are read there."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def pid_outside(pid: int, start_time: int, uid: int) -> int | None:
    """The pid here of the process of `uid` that has `pid` in a pid namespace below this one."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            pids = _pids(Path(f"/proc/{name}/status").read_text(encoding="utf-8", errors="replace"))
            if len(pids) < 2 or pids[-1] != pid or os.stat(f"/proc/{name}").st_uid != uid:
                continue
            process = identify(int(name))
            if process is not None and process.start_time == start_time:
                return process.pid
    return None


def _pids(status: str) -> list[int]:
    """Process ids in each pid namespace from that of /proc to the innermost."""
    found = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return [int(word) for word in found[0].split()[1:]] if found else []
