"""JSON lines and logs that a host agent writes on its stdout. It never waits for a launcher that does not read."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from zmqrl.messages.agent import AgentEvent, Alive, LogText, OtherUse, ProcessReport, Usage
from zmqrl.messages.lines import line_of
from zmqrl.messages.process import Metrics, VersionScore, WorkerRates

PENDING_LIMIT_BYTES = 4_000_000
DROPPABLE = (Alive, Metrics, WorkerRates, Usage, OtherUse, VersionScore)
"""Events that may be left out when the launcher does not read."""
MOST_BYTES = 65_536
"""Most bytes of one log at one look."""
MOST_PENDING_BYTES = 1_000_000
"""While so much waits for the launcher, logs stay where they are."""


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


class LogStream:
    """Follows the files of one folder."""

    def __init__(self, folder: Path, output: AgentOutput) -> None:
        self._folder, self._output = folder, output
        self._at: dict[str, int] = {}
        """How much of each log was sent, also of those that are not followed now: a process may continue one."""

    def follow(self, names: Iterable[str]) -> set[str]:
        """Send what is new in `<name>.log`, as far as the connection takes it; return the names of which all was sent.

        A log that does not exist has nothing to send.
        """
        sent = set()
        for name in names:
            if self._output.pending_bytes > MOST_PENDING_BYTES:
                break
            try:
                if self._send_new(name):
                    sent.add(name)
            except FileNotFoundError:
                sent.add(name)
            except OSError:
                continue
        return sent

    def _send_new(self, name: str) -> bool:
        """Whether that was all."""
        with (self._folder / f"{name}.log").open("rb") as log:
            end = log.seek(0, 2)
            at = self._at.get(name, 0)
            at = log.seek(at if at <= end else 0)  # it was emptied
            text = log.read(MOST_BYTES)
        self._at[name] = at + len(text)
        if text:
            self._output.send(LogText(name, text.decode(errors="replace")))
        return self._at[name] >= end
