"""What the user's signals mean: a pure reading of them, and the handlers that note them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from zmqrl.run_files.run_info import RunInfo, check_user
from zmqrl.supervision.process_table import ProcessId, send

SAME_PRESS_S = 1.0
"""A terminal sends Ctrl-C to the whole process group and wrappers send it again: within this it is one."""


def is_main_thread() -> bool:
    """Whether this thread may have handlers of signals."""
    return threading.current_thread() is threading.main_thread()


class StopFile:
    """A request to stop a run whose launcher catches no signals, since it is a thread of a process of the user."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "stop-requested"

    def request(self) -> None:
        """Request the stop, from another process. OSError: the file cannot be written."""
        self._path.touch()

    def is_requested(self) -> bool:
        """Whether there is a request; it is removed."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def request_stop(run_dir: Path, info: RunInfo) -> None:
    """Request a clean end of a launcher on this machine. ConfigError: it is another user's."""
    check_user(run_dir, info)
    if info.in_thread:
        StopFile(run_dir).request()
    else:
        send(ProcessId(info.pid, info.start_time), signal.SIGUSR1)


class StopRequest(IntEnum):
    """What the user requested; a later one never weakens it."""

    NONE = 0
    STOP = 1
    INTERRUPT = 2
    KILL = 3


class StopSignals:
    """SIGINT and SIGTERM: once ends cleanly, again kills. SIGHUP: ends cleanly. SIGUSR1 (`zmqrl stop`): as a success.

    A terminal that is closed sends SIGHUP, and the shell in it may send it again: it never kills.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.request = StopRequest.NONE
        self.same_presses = 0
        """Interrupts that counted as the first one."""
        self._clock = clock
        self._presses = 0
        self._pressed_at: float | None = None

    def note(self, number: int) -> None:
        """Take one signal in."""
        if number == signal.SIGUSR1:
            self.request = max(self.request, StopRequest.STOP)
        elif number == signal.SIGHUP:
            self.request = max(self.request, StopRequest.INTERRUPT)
        elif self._pressed_at is not None and self._clock() - self._pressed_at <= SAME_PRESS_S:
            self.same_presses += 1
        else:
            self._pressed_at = self._clock()
            self._presses += 1
            self.request = max(self.request, StopRequest.INTERRUPT if self._presses == 1 else StopRequest.KILL)

    def further(self) -> Callable[[], bool]:
        """Whether the user requests anything after this call: also an interrupt after the one that kills."""
        before = self.request, self._presses
        return lambda: (self.request, self._presses) != before

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them while the run lasts; the handlers before come back."""
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, lambda n, _: self.note(n)) for number in numbers}
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # by whoever started the calling script
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in before.items():
                signal.signal(number, handler)
