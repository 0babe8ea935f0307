"""A call in a check process as its command sees it: its subject, its stages, its limit, and what it comes to."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from traceback import FrameSummary
from typing import Any, NamedTuple

from zmqrl.errors import ConfigError, Key, UncleanTeardown
from zmqrl.messages.check import Answer, Ended, Report, Stage
from zmqrl.plugins import is_own, shown_path
from zmqrl.supervision import template
from zmqrl.supervision.process_table import cause_of

WAITING_S = 5.0
"""A call that takes longer is named, with the frame of the user's code in which it is."""
START_S, END_S, SLACK_S = 60.0, 2 * template.END_S, 0.5
"""For the imports of the template; for the end of a process; for the last report of the frame, after the limit."""
MOST_LINES = 12
WATCHING = template.watch.__name__
_DUMP = re.compile(r"^(?:Timeout \(|Fatal Python error: )", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)\n', re.MULTILINE)


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
