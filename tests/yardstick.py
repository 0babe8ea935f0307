"""Work of a known size, for bounds on the work of something else: a ratio holds on a machine of any speed and load."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOPS, TRIES = 20_000, 5
PROCESSES = 4
IDLE_S = 0.25
"""`processes_s` of a machine with two cores of 2024 that does nothing else."""


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of this process in `work`; the least of several times, since others use its caches."""

    def once() -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    return min(once() for _ in range(TRIES))


def loop_s() -> float:
    """The same of a loop in Python: 1 ms on a processor of 2024."""
    return cpu_s(lambda: sum(number % 7 for number in range(LOOPS)))


def processes_s() -> float:
    """The time in which processes that start at once, as those of a run, have imported numpy and ended."""
    begun = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(PROCESSES)]
    for process in started:
        assert process.wait() == 0
    return time.monotonic() - begun


@contextmanager
def within(idle_s: float) -> Iterator[None]:
    """What is done in it takes `idle_s` at most on an idle machine, and on another one in proportion to its speed."""
    begun = time.monotonic()
    yield
    took_s = time.monotonic() - begun
    if took_s > idle_s:
        yardstick_s = processes_s()
        assert took_s <= idle_s * yardstick_s / IDLE_S, f"{took_s:.2f} s, while the yardstick takes {yardstick_s:.2f} s"
