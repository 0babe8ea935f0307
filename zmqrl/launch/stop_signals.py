"""What the user's signals mean: a pure reading of them, and the handlers that note them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

SAME_PRESS_S = 1.0
"""A terminal sends Ctrl-C to the whole process group and wrappers send it again: within this it is one."""


class Request(IntEnum):
    """What the user requested; a later one never weakens it."""

    NONE = 0
    STOP = 1
    INTERRUPT = 2
    KILL = 3


class StopSignals:
    """SIGINT and SIGTERM: once ends cleanly, again kills. SIGUSR1 (`zmqrl stop`): ends cleanly, as a success."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.request = Request.NONE
        self._clock = clock
        self._first_at: float | None = None

    def note(self, number: int) -> None:
        """Take one signal in."""
        if number == signal.SIGUSR1:
            self.request = max(self.request, Request.STOP)
        elif self._first_at is None:
            self._first_at = self._clock()
            self.request = max(self.request, Request.INTERRUPT)
        elif self._clock() - self._first_at > SAME_PRESS_S:
            self.request = Request.KILL

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them while the run lasts; the handlers before come back."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, lambda n, _: self.note(n)) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
