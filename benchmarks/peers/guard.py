"""`guard.py COMMAND...`: a process that starts COMMAND in a session of its own and ends it and all its descendants.

It does so when COMMAND ends, on SIGTERM, and when its parent ends. It prints the time at which it started COMMAND
(CLOCK_MONOTONIC), and at last the CPU seconds of COMMAND and all descendants. COMMAND has `GRACE_S` after SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

PDEATHSIG, CHILD_SUBREAPER = 1, 36
GRACE_S, REAP_S = 15.0, 5.0


def end_with_parent(number: int, parent: int) -> None:
    """Receive this signal when the parent ends; exit if it has ended already."""
    ctypes.CDLL(None).prctl(PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def descendants(pid: int) -> list[int]:
    """Pids of the living processes below a process."""
    found, todo = [], [pid]
    while todo:
        with suppress(OSError):
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                todo += (children := [int(child) for child in (task / "children").read_text().split()])
                found += children
    return found


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child, then kill what is left of it: its group, and orphans, which are children of this process now."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    limit = time.monotonic() + REAP_S
    while (left := descendants(os.getpid())) and time.monotonic() < limit:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def on_signal(number: int, frame: FrameType | None) -> None:
    """End as at the end of the command."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main(command: list[str]) -> int:
    """Exit code of the command."""
    guard, parent = os.getpid(), os.getppid()
    signal.signal(signal.SIGTERM, on_signal)
    end_with_parent(signal.SIGTERM, parent)
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1)
    print(time.monotonic(), flush=True)
    child = subprocess.Popen(
        command,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL, guard),
    )
    try:
        return child.wait()
    finally:
        end(child)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with suppress(BrokenPipeError):
            print(used.ru_utime + used.ru_stime, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
