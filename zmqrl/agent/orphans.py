"""What a process of the run has started and left behind, such as a simulator of its env: ended and reaped."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

from zmqrl.agent.child_process import ChildProcess
from zmqrl.supervision.process_mark import mark_in, marked
from zmqrl.supervision.process_table import ProcessId, await_gone, children_of, is_alive, kill, send
from zmqrl.supervision.restarts import ProcessSlot

LOG = logging.getLogger(__name__)
KILL_WAIT_S = 1.0


class _Due(NamedTuple):
    slot: ProcessSlot
    number: signal.Signals
    at: float


class Orphans:
    """Ends what processes of this host leave behind; the agent adopts it, as a subreaper.

    During the run an orphan belongs to the process whose mark it has: what has another mark, or none, is not signalled.
    At the end of the run all that is below the agent is killed. Called by the agent's loop; only `end_all` waits.
    """

    def __init__(self, grace_s: float, children: Mapping[ProcessSlot, ChildProcess]) -> None:
        """`grace_s`: between SIGTERM and SIGKILL. `children`: of the agent, which reaps them itself."""
        self._grace_s, self._children = grace_s, children
        self._due: dict[int, _Due] = {}
        """Signals that are due, by the mark of processes that have ended."""

    def end(self, child: ChildProcess) -> None:
        """The process was reaped: the next `step` ends what it has left."""
        self._due[child.mark] = _Due(child.slot, signal.SIGTERM, -math.inf)

    def step(self, now: float) -> None:
        """SIGTERM what was left since the last step, SIGKILL what has had its grace. `now` in monotonic seconds."""
        self._reap()
        due = {mark: each for mark, each in self._due.items() if each.at <= now}
        if not due:
            return
        try:
            found = [(process, mark) for process, mark in marked() if mark in due]
        except OSError:  # no descriptor is left at the moment: the next step tries again
            return
        self._due = {mark: each for mark, each in self._due.items() if mark not in due}
        for process, mark in found:
            slot, number, _ = due[mark]
            if send(process, number):
                LOG.info("%s has left a process (pid %d): %s", slot, process.pid, number.name)
                self._due[mark] = _Due(slot, signal.SIGKILL, now + self._grace_s)

    def end_all(self) -> tuple[list[ProcessId], list[ProcessId]]:
        """SIGKILL all that is below this process, and wait for `KILL_WAIT_S`: who was killed, and who is left.

        With the end of a process this one becomes the parent of its children.
        """
        killed: dict[ProcessId, None] = {}
        until = time.monotonic() + KILL_WAIT_S
        own = self._own()
        while below := [p for p in children_of(os.getpid()) if p.pid not in own and is_alive(p)]:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            killed |= dict.fromkeys(filter(kill, below))
            await_gone(below, left_s)
        if below:
            LOG.warning("left, and not ended by SIGKILL: pids %s", ", ".join(str(process.pid) for process in below))
        return [process for process in killed if process not in below], below

    def _own(self) -> set[int]:
        return {child.identity.pid for child in self._children.values()}

    def _reap(self) -> None:
        """Orphans that have ended, each by its pid: `waitpid(-1)` would take exit codes of children."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, look)) and mark_in(ended.si_pid) and ended.si_pid not in self._own():
                os.waitpid(ended.si_pid, 0)
