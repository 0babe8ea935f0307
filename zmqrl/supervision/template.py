"""The template: a fresh process without the user's code that forks a check process for each call.

The template, not the command, is the parent of what the user's code starts: as a child subreaper it inherits every
orphan, also one with a session and an environment of its own. It ends them after each call, and when the command ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import time
from contextlib import suppress

from zmqrl.errors import WireError
from zmqrl.loading import loading
from zmqrl.messages.check import Call, Ended, Place, Raised, Returned, Stage, Waiting, line, read_call, read_from_check
from zmqrl.supervision.check_child import UNANSWERED, Pipes, places, run, write
from zmqrl.supervision.process_table import ProcessId, await_gone, cause_of, children_of, send

PR_SET_CHILD_SUBREAPER = 36
TERM_S, KILL_S, END_S = 0.5, 1.0, 5.0
"""For what is left: to end by itself after SIGTERM, to end after SIGKILL, and altogether."""
SLACK_S = 0.5
"""After the limit of a call, for the report of its place; and between the end of a process's pipes and its own."""
CHUNK, MOST_CHUNKS = 1 << 16, 64
MOST_TRACE, MOST_LOG, MOST_LINES = 1 << 16, 1 << 13, 12
DESCRIPTORS = 60_000
"""Those of a check process are above: `os.closerange(3, 4096)` of a user's code leaves them open."""
CLOSED, LATE, SETTLED, ABANDONED = "closed its file descriptors", "out of time", "settled", "abandoned"
"""Why a check process is ended before its answer."""


def main() -> int:
    """Serve calls until the command closes its pipe, stdin."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by whoever started the command, exit codes would be lost
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    requests, replies, null = os.fdopen(os.dup(0), "rb"), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    with loading():
        for name in json.loads(requests.readline() or "[]"):
            importlib.import_module(name)
    while request := requests.readline():
        ended = _Served(read_call(request), requests.fileno(), replies).end()
        if ended.cause == ABANDONED:
            break
        write(replies, line(ended))
    return 0


class _Served:
    """A call: its process, what that has written, and how it ended."""

    def __init__(self, call: Call, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self._stage = Stage("start")
        self._answer: Returned | Raised | None = None
        self._place: Place | None = None
        self._unread: list[bytes] = []
        self._trace = self._log = b""
        self._until = self._limit = time.monotonic() + call.limit_s + SLACK_S
        pairs = [_pipe() for _ in Pipes._fields]
        template, self._pid = os.getpid(), os.fork()
        if self._pid == 0:
            for descriptor in (requests, replies):
                os.close(descriptor)
            run(call, Pipes(*(writer for _, writer in pairs)), template)
        for _, writer in pairs:
            os.close(writer)
        self._readers = Pipes(*(reader for reader, _ in pairs))
        self._open = set(self._readers)
        self._pidfd = os.pidfd_open(self._pid)

    def end(self) -> Ended:
        """Wait for the answer, and end the process and all that it leaves."""
        cause = self._wait()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._read()
        left = end_children()
        for descriptor in (*self._readers, self._pidfd):
            os.close(descriptor)
        log = self._log.decode(errors="replace").splitlines()[-MOST_LINES:]
        pids = tuple(process.pid for process in left)
        if self._answer is not None:
            return Ended(self._answer, self._stage, "", None, tuple(log), pids)
        how = CLOSED if code == UNANSWERED else cause_of(code)
        return Ended(None, self._stage, cause or how, self._place, tuple(log), pids)

    def _wait(self) -> str:
        """Read until there is an answer, or none will come. Why the process is to be ended; empty: it has ended."""
        watched, closed = select.poll(), False
        for descriptor in (*self._readers, self._pidfd):
            watched.register(descriptor, select.POLLIN)
        watched.register(self._requests, 0)  # its end alone
        while self._answer is None:
            ready = dict(watched.poll(max(0.0, self._until - time.monotonic()) * 1000))
            if self._requests in ready:
                return ABANDONED
            if not ready:
                return CLOSED if closed else LATE if self._stage.settle_s is None else SETTLED
            for reader in self._read():
                watched.unregister(reader)
                if reader == self._readers.answers:
                    closed, self._until = True, time.monotonic() + SLACK_S
            if self._pidfd in ready:
                return ""
        return ""

    def _read(self) -> list[int]:
        """What the process has written. Returns the pipes that have ended."""
        ended = []
        for reader in tuple(self._open):
            with suppress(BlockingIOError):
                for _ in range(MOST_CHUNKS):  # a process may write without end
                    if chunk := os.read(reader, CHUNK):
                        self._take(reader, chunk)
                    else:
                        self._open.remove(reader)
                        ended.append(reader)
                        break
        return ended

    def _take(self, reader: int, chunk: bytes) -> None:
        if reader == self._readers.log:
            self._log = (self._log + chunk)[-MOST_LOG:]
        elif reader == self._readers.trace:
            self._trace = (self._trace + chunk)[-MOST_TRACE:]
            self._take_place()
        else:
            self._unread.append(chunk)
            if b"\n" in chunk:
                *lines, rest = b"".join(self._unread).split(b"\n")
                self._unread = [rest]
                for content in lines:
                    self._take_answer(content)

    def _take_place(self) -> None:
        dump, before = self._trace.decode(errors="replace"), self._place
        for self._place in places(dump):
            pass
        if self._place is not None and self._place != before and "Fatal Python error" not in dump:
            write(self._replies, line(Waiting(self._stage.name, self._place)))

    def _take_answer(self, content: bytes) -> None:
        try:
            found = read_from_check(content)
        except WireError:  # the user's code has written here
            return
        if isinstance(found, Stage):
            self._stage = found
            self._until = self._limit if found.settle_s is None else time.monotonic() + found.settle_s
        else:
            self._answer = found


def end_children() -> list[ProcessId]:
    """End all children of this process, and those that it inherits by their ends; returns what cannot be ended.

    Each is reaped by its own pid.
    """
    until, number, wait_s = time.monotonic() + END_S, signal.SIGTERM, TERM_S
    while _has_children():
        found = children_of(os.getpid())
        for process in found:
            send(process, number)
        await_gone(found, wait_s)
        for process in found:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        if time.monotonic() > until:
            return found
        number, wait_s = signal.SIGKILL, KILL_S
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # none is reaped
    except ChildProcessError:
        return False
    return True


def _pipe() -> tuple[int, int]:
    """Read and write end, the latter at a number that the user's code hardly closes."""
    reader, writer = os.pipe()
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16, DESCRIPTORS)
    moved = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, most)
    os.close(writer)
    os.set_blocking(reader, False)
    return reader, moved
