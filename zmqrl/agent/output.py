"""Output of the host agent: JSON lines on stdout, never waiting for a launcher that does not read."""

from __future__ import annotations

import os
import select
import time

from zmqrl.messages.agent import AgentEvent, Metrics, ProcessReport, Score, Usage, WorkerRates
from zmqrl.messages.lines import line_of

PENDING_LIMIT_BYTES = 4_000_000
DROPPABLE = (Metrics, WorkerRates, Usage, Score)
"""Events that may be left out when the launcher does not read."""


class AgentOutput:
    """Writes events to a nonblocking descriptor and keeps what does not fit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = bytearray()
        self._gone = False
        os.set_blocking(fd, False)

    @property
    def pending_bytes(self) -> int:
        """How much waits for a reader."""
        return len(self._pending)

    @property
    def pending(self) -> bool:
        """Whether something waits for the descriptor to be writable."""
        return bool(self._pending) and not self._gone

    def send(self, event: AgentEvent) -> None:
        """One event line. Measurements are dropped while `PENDING_LIMIT_BYTES` wait; what counts never is."""
        what = event.report if isinstance(event, ProcessReport) else event
        if isinstance(what, DROPPABLE) and len(self._pending) > PENDING_LIMIT_BYTES:
            return
        self._write(line_of(event))

    def flush(self) -> None:
        """Write what can be written now. A reader that is gone is not an error: the end of stdin reports it."""
        while self._pending and not self._gone:
            try:
                del self._pending[: os.write(self.fd, self._pending)]
            except BlockingIOError:
                return
            except OSError:
                self._gone = True

    def drain(self, deadline_s: float) -> None:
        """Write everything, for at most `deadline_s`."""
        until = time.monotonic() + deadline_s
        self.flush()
        while self.pending and (left_s := until - time.monotonic()) > 0:
            select.select([], [self.fd], [], left_s)
            self.flush()

    def _write(self, line: bytes) -> None:
        self._pending += line
        self.flush()
