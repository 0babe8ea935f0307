"""Calls of functions that may import the user's code: each in a check process, which a template forks and ends.

The template is started with the first call, or earlier by `start`, so that its imports overlap with those of the
command. Of several threads, one calls at a time.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from traceback import FrameSummary
from typing import Any, NamedTuple

from zmqrl.errors import ConfigError, Key, UncleanTeardown, WireError, ZmqrlError
from zmqrl.loading import importing_environment
from zmqrl.messages.check import Answer, Call, Ended, Report, Stage, data_of, read_report
from zmqrl.messages.lines import line_of
from zmqrl.plugins import is_own, shown_path
from zmqrl.supervision import template
from zmqrl.supervision.process_table import cause_of

WAITING_S = 5.0
"""A call that takes longer is named, with the frame of the user's code in which it is."""
START_S, END_S, SLACK_S = 60.0, 2 * template.END_S, 0.5
"""For the imports of the template; for the end of a process; for the last report of the frame, after the limit."""
CHUNK, MOST_LOG, MOST_LINES = 1 << 16, 1 << 16, 12
COMMAND = (sys.executable, "-m", "zmqrl.entry", template.TEMPLATE, "-", "0")
TEMPLATE, WATCHING = "the process that starts check processes", template.watch.__name__
_DUMP = re.compile(r"^(?:Timeout \(|Fatal Python error: )", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)\n', re.MULTILINE)

_lock = threading.RLock()
_template: _Template | None = None
_found: dict[str, Any] = {}


class Subject(NamedTuple):
    """What a call is about, for its errors: a value as it is shown, and the key that has it."""

    value: str
    key: Key = ()

    def __str__(self) -> str:
        return ": ".join(filter(None, (".".join(self.key), self.value)))


class CheckEnded(ConfigError):
    """A check process hung in `stage` (`is_late`), or ended there without an answer: `STAGE: CAUSE (PLACE)`.

    `place`: file, line and function of the user's code.
    """

    def __init__(
        self, cause: str, subject: Subject, stage: str, is_late: bool, place: str = "", output: str = ""
    ) -> None:
        super().__init__(f"{stage}: {cause}{_shown(place)}{output}", key=subject.key, value=subject.value)
        self.cause, self.stage, self.is_late, self.place = cause, stage, is_late, place


def start() -> None:
    """Start the template, unless there is one, and return at once."""
    global _template
    with _lock:
        _template = _template or _Template()


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
    """No template and no check process is left afterwards."""
    try:
        yield
    finally:
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


class Served:
    """A call as far as its reports show it."""

    def __init__(self, subject: Subject, limit_s: float) -> None:
        self._subject, self._limit_s, self._limit_at, self._shown = subject, limit_s, 0.0, ""
        self.stage, self.is_late, self._begun = Stage("start"), False, time.monotonic()
        self.answer: Answer | None = None
        self.ended: Ended | None = None
        self.until = time.monotonic() + max(START_S, limit_s)
        """When the process is late."""

    def take(self, report: Report) -> None:
        now = time.monotonic()
        if isinstance(report, Stage):
            self._limit_at = (self._limit_at or now + self._limit_s + SLACK_S) if report.is_limited else 0.0
            self.stage, self._begun = report, now
            self.until = now + report.settle_s if report.settle_s is not None else self._limit_at or math.inf
        elif isinstance(report, Answer):
            self.answer, self.until = report, now + END_S
        else:
            self.ended = report

    def show_place(self, log: str) -> None:
        """Write to stderr where a long call is: of what may take any time once, and if no stage follows it."""
        place = _place_in(log) if "Timeout (" in log and self.answer is None else self._shown
        is_due = self.stage.is_limited or (not self._shown and time.monotonic() - self._begun >= WAITING_S)
        if place != self._shown and is_due:
            self._shown = place
            line = f"still waiting for {self._subject.value}: {self.stage.name}{_shown(place)}"
            print(line, file=sys.stderr, flush=True)

    def give_up(self) -> None:
        self.is_late, self.until = True, time.monotonic() + END_S

    def value(self, log: str) -> Any:
        """What the call returned; else the error to raise."""
        assert self.ended is not None
        subject, stage = self._subject, self.stage.name
        shown = "".join(f"\n   {line}" for line in _DUMP.split(log)[0].splitlines()[-MOST_LINES:])
        if self.answer is not None and self.answer.error is not None:
            raise _error_of(self.answer, subject, stage, shown)
        if self.answer is None and not (self.is_late and self.stage.settle_s is not None):
            cause, place = self._cause(self.ended.exit_code), _place_in(log)
            raise CheckEnded(cause, subject, stage, self.is_late, place, shown)
        if self.ended.left:
            pids = ", ".join(map(str, self.ended.left))
            raise UncleanTeardown(f"{subject}: processes that its check has started are left: pid {pids}")
        return json.loads(self.stage.known if self.answer is None else self.answer.value)

    def _cause(self, exit_code: int) -> str:
        if self.is_late:
            return f"not finished within limits.start_s ({self._limit_s:g} s)"
        if exit_code == template.UNANSWERED:
            return "the user's code closed the file descriptors of its process"
        return f"the user's code ended its process ({cause_of(exit_code)})"


def _error_of(answer: Answer, subject: Subject, stage: str, output: str) -> Exception:
    if answer.error == template.OF_USER:
        more = f"\n{answer.traceback}" if answer.traceback else output
        return ConfigError(f"{stage}: {answer.text}{more}", key=subject.key, value=subject.value)
    kind = template.ERRORS.get(answer.error or "")
    if kind is None:
        return RuntimeError(f"{subject}: {stage}: {answer.text}")
    error = kind.__new__(kind, answer.text)
    vars(error).update({name: _frozen(value) for name, value in json.loads(answer.fields).items()})
    return error


def _frozen(value: Any) -> Any:
    """JSON data with tuples, which the fields of errors have, in the place of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _place_in(log: str) -> str:
    """`file:line, in function` of the user's code in the newest dump of faulthandler; empty without one."""
    for stack in reversed(log.split("\n\n")):  # the main thread is the last one of a dump
        found = [FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in _FRAME.findall(stack)]
        if found and found[-1].name != WATCHING:  # else the dump is read while it is written: it begins there
            newest = next(filter(is_own, found), found[0])
            return f"{shown_path(newest.filename)}:{newest.lineno}, in {newest.name}"
    return ""


def _shown(place: str) -> str:
    return f" ({place})" if place else ""
