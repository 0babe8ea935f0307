"""One process of the run, as its host agent holds it: the pipes, the pidfd, the log."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from zmqrl.errors import ENDED_BY_USER_CODE, WireError
from zmqrl.logs.standard_output import tail_of
from zmqrl.messages import agent, process
from zmqrl.messages.command import Evaluate
from zmqrl.messages.lines import child_event, line_of
from zmqrl.messages.process import UPDATE, ChildEvent, ProcessFault
from zmqrl.supervision.host_template import ForkedProcess
from zmqrl.supervision.process_table import ProcessId, cause_of
from zmqrl.supervision.restarts import AT_START, BY_EXIT, NO_SEGMENT, ProcessSlot

LOG_LIMIT_BYTES = 20_000_000
EVENT_READ_BYTES = 65_536
MOST_UNREAD_BYTES = 16 << 20
UNREPORTED_END = (
    "exited with code 0 without reporting the end of the training: user code or a library ended the process"
)
UNREQUESTED_END = (
    "exited with code 0 without a request of its host agent: user code, a library or a signal ended the process"
)


@dataclass
class ChildProcess:
    """A started process; `close` gives its descriptors back once it was reaped."""

    slot: ProcessSlot
    spawn: int
    process: subprocess.Popen[bytes] | ForkedProcess
    identity: ProcessId
    pidfd: int
    events_fd: int
    stdin_fd: int
    wake_fd: int | None
    log: Path
    log_start: int
    """Where this process's part of the log begins, in bytes."""
    start_line: str
    """What its agent has written to its log."""
    mark: int
    """All that it starts inherits this mark (`zmqrl.supervision.process_mark`)."""
    events_open: bool = True
    killed: bool = False
    expected_to_end: bool = False
    ready: bool = False
    """The process reported that it is ready: from then on its silence counts."""
    has_worked: bool = False
    """A worker has stepped, a learner has trained, an evaluator has scored."""
    has_delivered: bool = False
    """A worker has delivered a segment."""
    reported_end: bool = False
    """A learner has reported the end of the training. Without this report exit code 0 is not a success."""
    last_fault: ProcessFault | None = None
    kill_at: float = math.inf
    """When it is killed, in monotonic seconds."""
    refused: Counter[str] = field(default_factory=Counter)
    """Lines that it wrote and that are not events, by reason."""
    _unread: bytes = b""
    _unwritten: bytes = b""

    def read_events(self) -> list[ChildEvent]:
        """Events that the process wrote since the last call; lines that are none are counted in `refused`."""
        events = []
        while True:
            try:
                chunk = os.read(self.events_fd, EVENT_READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self.events_open = False
                break
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > MOST_UNREAD_BYTES:
            self._unread = b""
            self.refused["size"] += 1
        for line in lines:
            try:
                events.append(child_event(line))
            except WireError as error:
                self.refused[error.reason] += 1
        return events

    def note(self, event: agent.Report) -> None:
        """Keep what an event shows of the process."""
        match event:
            case process.Ready():
                self.ready = True
            case process.FirstStep() | process.Metrics() | process.VersionScore():
                self.has_worked = True
            case process.WorkerRates() if event.env_steps:
                self.has_delivered = True
            case process.Left():
                self.expected_to_end = True
            case process.ProcessFault():
                self.last_fault = event
            case process.LearnerEnded():
                self.has_worked = self.reported_end = True

    def write_line(self, message: Evaluate) -> None:
        """Write a line to its stdin without blocking; of what does not fit only the newest is kept."""
        self._unwritten = line_of(message)
        self.flush()

    @property
    def has_unwritten(self) -> bool:
        """Whether a line waits for room in the pipe."""
        return bool(self._unwritten)

    def flush(self) -> None:
        """Try again to write what did not fit. Lines below PIPE_BUF go whole or not at all."""
        if not self._unwritten:
            return
        try:
            os.write(self.stdin_fd, self._unwritten)
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self._unwritten = b""

    def wake(self) -> None:
        """One byte: there are new weights. A full pipe means that a notification is pending."""
        if self.wake_fd is None:
            return
        try:
            os.write(self.wake_fd, b"\0")
        except (BlockingIOError, BrokenPipeError):
            return

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it; no error when it is gone: `process` knows whether the pid was reaped."""
        self.expected_to_end = True
        self.killed = self.killed or number == signal.SIGKILL
        self.process.send_signal(number)

    def close_stdin(self) -> None:
        """End of file for the process. Safe to call twice."""
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
            self.stdin_fd = -1
            self._unwritten = b""

    def close(self) -> None:
        """Close every descriptor of a process that was reaped."""
        self.close_stdin()
        for fd in (self.pidfd, self.events_fd, self.wake_fd):
            if fd is not None:
                os.close(fd)

    def cause_of_end(self) -> str:
        """The fault that it reported, else its exit code or signal."""
        if self.last_fault is not None:
            return self.last_fault.error
        if self.process.returncode == 0 and not self.expected_to_end:
            return UNREPORTED_END if self.slot.role == "learner" else UNREQUESTED_END
        return cause_of(self.process.returncode)

    def point_of_end(self) -> str | None:
        """Where it raised the fault that it reported, see `Died.point`; None where no exception ended it."""
        if self.last_fault is None or self.process.returncode < 0:
            return None
        if self.process.returncode == ENDED_BY_USER_CODE:
            return BY_EXIT
        update = self.last_fault.detail.get(UPDATE)
        if isinstance(update, int):
            return f"in update {update}"
        if self.slot.role == "worker" and self.has_worked and not self.has_delivered:
            return NO_SEGMENT
        return None if self.has_worked or self.slot.role == "broker" else AT_START

    def log_tail(self) -> tuple[str, ...]:
        """The last lines that this process wrote to its log."""
        try:
            return tuple(line for line in tail_of(self.log, self.log_start) if line != self.start_line)
        except OSError:  # there was no room for it
            return ()

    def cap_log(self) -> None:
        """Empty a log that grew past its limit; the writer appends, so it continues at the new end."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_LIMIT_BYTES:
                os.truncate(self.log, 0)
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(f"[log emptied at {LOG_LIMIT_BYTES} bytes]\n")
