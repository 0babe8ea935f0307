"""A session of the host agent's own: no terminal ends it, and of two hosts on one machine the reaper ends one alone.

A process that leads a process group cannot make a session, and what has pid 1 must reap orphans: schedulers and
container engines start commands in both ways. There the agent is a child, its parent waits, and each ends with the
other.
"""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
INIT = 1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def lead_session() -> int | None:
    """Have this process lead a session. Call it before there are threads.

    Returns:
        None in the agent; in a parent that waited for it, the exit code to end with.
    """
    is_init = os.getpid() == INIT
    if os.getsid(0) == os.getpid() and not is_init:
        return None
    if os.getpgrp() != os.getpid() and not is_init:
        os.setsid()
        return None
    parent = os.getpid()
    agent = os.fork()
    if agent == 0:
        os.setsid()
        die_with(parent)
        return None
    return _wait_for(agent)


def adopt_orphans() -> None:
    """Become the parent of each orphan below this process, in place of process 1."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when the parent's starting thread ends, also if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _wait_for(agent: int) -> int:
    def forward(number: int, _: FrameType | None) -> None:
        os.kill(agent, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    while True:
        pid, status = os.wait()
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
