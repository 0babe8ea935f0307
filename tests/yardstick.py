"""Work of a known size, for bounds on the work of something else: a ratio holds on a machine of any speed and load."""

from __future__ import annotations

import math
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


def assert_within(took_s: float, idle_s: float) -> None:
    """What took so long takes `idle_s` at most on an idle machine; on another one, in proportion to the yardstick."""
    if took_s > idle_s:
        yardstick_s = processes_s()
        assert took_s <= idle_s * yardstick_s / IDLE_S, f"{took_s:.2f} s, while the yardstick takes {yardstick_s:.2f} s"


def scaled_s(idle_s: float) -> float:
    """A limit for what takes less than `idle_s` on an idle machine, in whole seconds."""
    return float(math.ceil(idle_s * max(1.0, processes_s() / IDLE_S)))


@contextmanager
def within(idle_s: float) -> Iterator[None]:
    """The same of what is done in it."""
    begun = time.monotonic()
    yield
    assert_within(time.monotonic() - begun, idle_s)
