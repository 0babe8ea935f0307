"""Calls of functions that may import the user's code: each in a check process, which a template forks and ends.

The template is started with the first call, or earlier by `start`, so that its imports overlap with those of the
command. Of several threads, one calls at a time.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zmqrl.errors import WireError, ZmqrlError
from zmqrl.loading import importing_environment
from zmqrl.messages.check import Become, Call, Report, Stage, data_of, read_report
from zmqrl.messages.lines import line_of
from zmqrl.supervision import template
from zmqrl.supervision.served_call import END_S, WAITING_S, Served, Subject
from zmqrl.supervision.shown_command import packed

CHUNK, MOST_LOG = 1 << 16, 1 << 16
COMMAND = (sys.executable, "-m", "zmqrl.entry", template.TEMPLATE, "-", "0")
TEMPLATE = "the process that starts check processes"

_lock = threading.RLock()
_template: _Template | None = None
_found: dict[str, Any] = {}
_depth = 0


def start() -> None:
    """Start the template, unless there is one, and return at once."""
    global _template
    with _lock:
        _template = _template or _Template()


def become(words: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
    """Have the template, where there is one, become a host agent, in place of starting one.

    `environment`: all of it. `log`: a file, to which the stderr of the agent is appended.
    """
    global _template
    with _lock:
        template, _template = _template, None
        return None if template is None else template.become(words, environment, log)


def end() -> None:
    """End the template, with all that is left of a call."""
    global _template
    with _lock:
        _found.clear()
        if _template is not None:
            _template.end()
            _template = None


atexit.register(end)


@contextmanager
def none_left() -> Iterator[None]:
    """No template and no check process is left after the outermost one."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            end()


def call(
    function: str,
    *arguments: Any,
    subject: Subject,
    limit_s: float,
    key: str | None = None,
    on_stage: Callable[[Stage], None] = lambda _: None,
) -> Any:
    """Carry out `function` of zmqrl, `module:name`, in a check process.

    Everything that the process has started has ended afterwards.

    Args:
        function: It takes and returns plain data; a generator yields a `Stage` at the start of each part.
        arguments: Plain data.
        subject: Key and value of an error.
        limit_s: `limits.start_s`.
        key: Of several calls with the same key before `end`, only the first is carried out.
        on_stage: Receives each `Stage` when it begins.

    Raises:
        ZmqrlError: What the function raised, by its class and attributes.
        ConfigError: It raised something else; or, as `CheckEnded`, its process hung or ended.
    """
    with _lock:
        if key is not None and key in _found:
            return _found[key]
        start()
        assert _template is not None
        try:
            value = _template.call(call_of(function, arguments, limit_s), subject, limit_s, on_stage)
        finally:
            if not _template.is_idle:  # it was interrupted: the next call takes another template
                end()
        return value if key is None else _found.setdefault(key, value)


def call_of(function: str, arguments: Sequence[Any], limit_s: float) -> Call:
    """The message to a template; the last dump of frames is at the limit."""
    return Call(function, data_of(arguments), limit_s / max(1, round(limit_s / WAITING_S)))


class _Template:
    def __init__(self) -> None:
        self._logged, log = os.pipe()
        pipe, environment = subprocess.PIPE, importing_environment()
        self._process = subprocess.Popen(
            COMMAND, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
        )
        os.close(log)
        os.set_blocking(self._logged, False)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._reports = self._process.stdin, self._process.stdout
        self.is_idle, self._log = True, ""
        self._unread: list[bytes] = []
        self._send(b"null\n")

    def call(self, request: Call, subject: Subject, limit_s: float, on_stage: Callable[[Stage], None]) -> Any:
        self.is_idle, self._log = False, ""
        self._send(line_of(request))
        served = Served(subject, limit_s)
        while served.ended is None:
            for report in self._read(served.until):
                served.take(report)
                if isinstance(report, Stage):
                    on_stage(report)
            served.show_place(self._log)
            if time.monotonic() > served.until:
                if served.is_late:
                    raise ZmqrlError(f"{TEMPLATE} does not answer: {self._log or 'no output'}")
                served.give_up()
                self._send(b"\n")
        self.is_idle = True
        return served.value(self._log)

    def become(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        if self._process.poll() is not None:
            self.end()
            return None
        os.close(self._logged)
        self._send(line_of(Become(*packed(words, environment), packed((str(log.absolute()),), {})[0][0])))
        return self._process

    def _send(self, content: bytes) -> None:
        with suppress(BrokenPipeError):  # reading shows why
            self._requests.write(content)
            self._requests.flush()

    def _read(self, until: float) -> Iterator[Report]:
        """The reports that are there, or come first until then."""
        watched = select.poll()
        for descriptor in (self._reports, self._logged):
            watched.register(descriptor, select.POLLIN)
        ready = dict(watched.poll(min(max(0.0, until - time.monotonic()), END_S) * 1000))
        with suppress(BlockingIOError):
            self._log = (self._log + os.read(self._logged, CHUNK).decode(errors="replace"))[-MOST_LOG:]
        if self._reports.fileno() not in ready:
            return
        chunk = os.read(self._reports.fileno(), CHUNK)
        if not chunk:
            raise ZmqrlError(f"{TEMPLATE} has ended: {self._log.strip() or 'no output'}")
        self._unread.append(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(self._unread).split(b"\n")
            self._unread = [rest]
            for content in lines:
                with suppress(WireError):  # the user's code may write what it likes
                    yield read_report(content)

    def end(self) -> None:
        """While a call runs, the template ends what it has started first."""
        if self.is_idle:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reports.close()
        os.close(self._logged)
