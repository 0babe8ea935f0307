"""Writing to a store that may fail for a while: the user is notified of it, and the run waits or continues without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from zmqrl.errors import StoreError
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport, Writing
from zmqrl.types import Severity

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
REPORT_AGAIN_S = 30.0
REPORT_EVERY_S = 0.5
"""Well below any `limits.grace_s`."""
Result = TypeVar("Result")


@dataclass
class _Failing:
    since: float
    reported_at: float = -float("inf")
    reported: str = ""


class RetryingWriter:
    """One store, one writer. Reports what fails and why, at once and again while it continues, and when it is over."""

    def __init__(
        self, events: EventPipe, wait_s: float, stop_s: float = 0.0, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """`wait_s`: how long to retry; `stop_s`: how long once a stop was requested, as `stopping` reports."""
        self._events, self._stopping = events, stopping
        self._wait_s, self._stop_s = wait_s, stop_s
        self._failing: dict[str, _Failing] = {}

    def retry_until(self, what: str, write: Callable[[], Result], meanwhile: str) -> Result:
        """Write again until it succeeds, for `wait_s` at most. StoreError, the last one, when that was too short."""
        pause_s, begun, stop_at = FIRST_PAUSE_S, time.monotonic(), float("inf")
        while True:
            try:
                return self._written(what, write())
            except StoreError as error:
                now = time.monotonic()
                if self._stopping():
                    stop_at = min(stop_at, now + self._stop_s)
                if now >= min(stop_at, begun + self._wait_s):
                    raise
                bound = f", for {begun + self._wait_s - now:.0f} s at most (store.wait_s)"
                self._failed(what, error, meanwhile, bound)
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def try_once(self, what: str, write: Callable[[], Result], meanwhile: str) -> Result | None:
        """Write once; None when it failed."""
        try:
            return self._written(what, write())
        except StoreError as error:
            self._failed(what, error, meanwhile)
            return None

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """While this lasts, `store.wait_s` at most, the agent receives `writing`: a clean stop waits for the writer."""
        over, until = threading.Event(), time.monotonic() + self._wait_s

        def report() -> None:
            while not over.wait(REPORT_EVERY_S) and time.monotonic() < until:
                self._events.send(Writing())

        thread = threading.Thread(target=report, name="writing", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def report_problem(self, cause: str, action: str, severity: Severity = "warning") -> None:
        """Report to the user at once."""
        self._events.send(ProblemReport(cause, action, severity))

    def _failed(self, what: str, error: StoreError, meanwhile: str, bound: str = "") -> None:
        now = time.monotonic()
        failing = self._failing.setdefault(what, _Failing(now))
        if meanwhile != failing.reported or now >= failing.reported_at + REPORT_AGAIN_S:
            failing.reported, failing.reported_at = meanwhile, now
            self.report_problem(str(error), meanwhile + bound)

    def _written(self, what: str, result: Result) -> Result:
        failing = self._failing.pop(what, None)
        if failing is not None:
            failed_s = time.monotonic() - failing.since
            cause = f"{what} could not be written for {failed_s:.1f} s"
            self.report_problem(cause, "writes succeed again, the run continues", "note")
        return result
