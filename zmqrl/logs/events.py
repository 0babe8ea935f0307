"""The event pipe: what a process of the run reports to its host agent, one JSON line an event."""

from __future__ import annotations

import os
from collections import Counter

from zmqrl.messages.lines import line_of
from zmqrl.messages.process import ChildEvent, MessagesRefused


class EventPipe:
    """Writes to the inherited descriptor `events`. A closed pipe is not an error: the process ends with its parent."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def send(self, event: ChildEvent) -> None:
        """One event. Blocks only while the agent has 64 KiB unread."""
        if self._fd is None:
            return
        line = line_of(event)
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            self._fd = None


class Refusals:
    """Messages that this process refused, by reason; event `refused` has the counts."""

    def __init__(self, events: EventPipe) -> None:
        self._events = events
        self.counts: Counter[str] = Counter()
        self._reported = 0

    def add(self, reason: str) -> None:
        """One more."""
        self.counts[reason] += 1

    def report(self) -> None:
        """Send the counts if there are more than last time; to be called once per heartbeat at most."""
        if self.counts.total() != self._reported:
            self._reported = self.counts.total()
            self._events.send(MessagesRefused(dict(self.counts)))
