"""What a process of this host leaves behind when it ends during the run, such as a simulator that its env has started.

It is found by the environment: each process has a mark of its own there (`PROCESS_VARIABLE`), which all that it starts
inherits, also in another session or process group. What has another mark, or none, is never signalled.
"""

from __future__ import annotations

import logging
import signal

from zmqrl.agent.run_processes import marked_by
from zmqrl.supervision.process_table import send

LOG = logging.getLogger(__name__)


class Orphans:
    """Called by the agent's loop. Nothing here waits; a step with something to do reads the process table once."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: between SIGTERM and SIGKILL."""
        self._grace_s = grace_s
        self._ended: set[str] = set()
        """Marks of processes that have ended since the last step."""
        self._kill_at: dict[str, float] = {}
        """By the mark."""

    def end(self, mark: str) -> None:
        """The process with this mark was reaped: the next `step` ends what it has left."""
        self._ended.add(mark)

    def step(self, now: float) -> None:
        """SIGTERM what was left since the last step, SIGKILL what has had its grace. `now` in monotonic seconds."""
        numbers = dict.fromkeys(self._ended, signal.SIGTERM)
        numbers |= {mark: signal.SIGKILL for mark, at in self._kill_at.items() if at <= now}
        if not numbers:
            return
        try:
            found = list(marked_by(numbers))
        except OSError:  # no descriptor is left at the moment: the next step tries again
            return
        for mark in numbers:
            self._kill_at.pop(mark, None)
        self._ended.clear()
        for process, mark in found:
            if send(process, numbers[mark]):
                LOG.info("%s has left a process (pid %d): %s", mark, process.pid, numbers[mark].name)
                self._kill_at[mark] = now + self._grace_s
