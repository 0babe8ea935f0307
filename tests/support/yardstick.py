"""Work of a known size, for bounds on the work of something else: a ratio holds on a machine of any speed and load."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zmqrl.testing.expect import IDLE_S, assert_within, processes_s

LOOPS, TRIES = 20_000, 5


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


def scaled_s(idle_s: float) -> float:
    """A limit for what takes less than `idle_s` on an idle machine, in whole seconds."""
    return float(math.ceil(idle_s * max(1.0, processes_s() / IDLE_S)))


@contextmanager
def within(idle_s: float) -> Iterator[None]:
    """What is done in it takes at most `idle_s` on an idle machine, and on another one in proportion to its speed."""
    begun = time.monotonic()
    yield
    assert_within(time.monotonic() - begun, idle_s)
