"""One process of the run, as its host agent holds it: the pipes, the pidfd, the log."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import ENDED_BY_USER_CODE, WireError
from zmqrl.logs.process_log import start_line
from zmqrl.logs.standard_output import tail_of
from zmqrl.messages.agent import UPDATE, ChildEvent, Evaluate, Fault
from zmqrl.messages.lines import child_event, line_of
from zmqrl.supervision.gpus import VISIBLE
from zmqrl.supervision.host_mark import RUN_VARIABLE
from zmqrl.supervision.process_mark import process_mark, set_mark
from zmqrl.supervision.process_table import ProcessId, cause_of, identify
from zmqrl.supervision.restarts import AT_START, BY_EXIT, NO_SEGMENT, ProcessSlot

LOG_LIMIT_BYTES = 20_000_000
EVENT_READ_BYTES = 65_536
MOST_UNREAD_BYTES = 16 << 20
KILL_S = 0.1
UNREPORTED_END = (
    "exited with code 0 without reporting the end of the training: user code or a library ended the process"
)
UNREQUESTED_END = (
    "exited with code 0 without a request of its host agent: user code, a library or a signal ended the process"
)

CommandLine = Callable[[str, str, int], Sequence[str]]
"""(role, run id, index) to argv."""


def entry_command(role: str, run_id: str, index: int) -> Sequence[str]:
    """The argv that names a process of a run, and nothing else in it does."""
    return [sys.executable, "-m", "zmqrl.entry", f"zmqrl.{role}", run_id, str(index)]


@dataclass
class ChildProcess:
    """A started process; `close` gives its descriptors back once it was reaped."""

    place: ProcessSlot
    spawn: int
    process: subprocess.Popen[bytes]
    identity: ProcessId
    pidfd: int
    events_fd: int
    stdin_fd: int
    wake_fd: int | None
    log: Path
    log_start: int
    """Where this process's part of the log begins, in bytes."""
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
    last_fault: Fault | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Lines that it wrote and that are not events, by reason."""
    start_line: str = ""
    """What its agent has written to its log."""
    mark: int = 0
    """All that it starts inherits this mark (`zmqrl.supervision.process_mark`)."""
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
        """Signal it; no error when it is gone. Popen knows whether the pid was reaped."""
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
            return UNREPORTED_END if self.place.role == "learner" else UNREQUESTED_END
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
        if self.place.role == "worker" and self.has_worked and not self.has_delivered:
            return NO_SEGMENT
        return None if self.has_worked or self.place.role == "broker" else AT_START

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


def _opened(log: Path) -> BinaryIO:
    """To append to; nowhere when the disk takes no new file: no process depends on its log."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def _pipe(of_read: contextlib.ExitStack, of_write: contextlib.ExitStack) -> tuple[int, int]:
    """Read and write end of a pipe, each closed by its stack."""
    read, write = os.pipe()
    of_read.callback(os.close, read)
    of_write.callback(os.close, write)
    return read, write


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was not started completely. One that the kernel holds is not waited for."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


INHERITED_BY_LEARNER: Mapping[str, str | None] = MappingProxyType({"learner": None})


class ProcessSpawner:
    """Starts processes. Only the agent's main thread may: a child dies with the thread that started it."""

    def __init__(
        self,
        log_dir: Path,
        parent_variable: str,
        command: CommandLine = entry_command,
        visible_gpus: Mapping[str, str | None] = INHERITED_BY_LEARNER,
    ) -> None:
        """`visible_gpus`: of `zmqrl.agent.devices.Devices`."""
        self._command, self._visible_gpus = command, visible_gpus
        self._environment = {**os.environ, parent_variable: str(os.getpid())}
        self._numbers = itertools.count()
        self.log_dir = log_dir
        self.log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, boot: Boot, place: ProcessSlot, spawn: int, shared: Mapping[str, int]) -> ChildProcess:
        """Start one process with the `shared` descriptors and their own pipes.

        `boot` is what all processes of that role on this host share; role, index, spawn and fds are filled in here.

        Raises:
            OSError: It cannot be started; nothing of it is left.
        """
        # what `start` has opened is closed if it fails; the child's ends of the pipes are closed in any case
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as inherited:
            events_fd, events_write = _pipe(undo, inherited)
            wake_read, wake_fd = _pipe(inherited, undo) if place.role == "worker" else (None, None)
            fds = {**shared, "events": events_write, **({} if wake_read is None else {"wake": wake_read})}
            mark = process_mark(boot.plan.run_id, boot.host, next(self._numbers))
            log = self.log_dir / f"{boot.host}-{place.role}-{place.index}.log"
            with _opened(log) as output:
                log_start = output.tell()
                process = subprocess.Popen(
                    self._command(place.role, boot.plan.run_id, place.index),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=tuple(fds.values()),
                    env=self._environment_of(place.role) | {RUN_VARIABLE: boot.plan.run_id},
                )
                undo.callback(_end, process)
                set_mark(process.pid, mark)
                line = start_line(boot.plan.config, place.role, place.index, process.pid, spawn)
                with contextlib.suppress(OSError):  # a full disk
                    os.write(output.fileno(), f"{line}\n".encode())
            self._write_boot(process, replace(boot, role=place.role, index=place.index, spawn=spawn, fds=fds))
            child = self._child(place, spawn, process, events_fd, wake_fd, (log, log_start), undo)
            child.start_line, child.mark = line, mark
            undo.pop_all()
            return child

    def _environment_of(self, role: str) -> dict[str, str]:
        gpus = self._visible_gpus.get(role, "")
        return self._environment if gpus is None else {**self._environment, VISIBLE: gpus}

    def _write_boot(self, process: subprocess.Popen[bytes], boot: Boot) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(to_json(boot), separators=(",", ":")).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once: its pidfd shows it

    def _child(
        self,
        place: ProcessSlot,
        spawn: int,
        process: subprocess.Popen[bytes],
        events_fd: int,
        wake_fd: int | None,
        log: tuple[Path, int],
        undo: contextlib.ExitStack,
    ) -> ChildProcess:
        assert process.stdin is not None
        stdin_fd = os.dup(process.stdin.fileno())
        undo.callback(os.close, stdin_fd)
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        for fd in (events_fd, stdin_fd, wake_fd):
            if fd is not None:
                os.set_blocking(fd, False)
        identity = identify(process.pid)
        if identity is None:  # it is not reaped
            raise OSError(f"/proc/{process.pid}/stat cannot be read")
        pidfd = os.pidfd_open(process.pid)
        return ChildProcess(place, spawn, process, identity, pidfd, events_fd, stdin_fd, wake_fd, *log)
