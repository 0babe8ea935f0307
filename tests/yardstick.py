"""Work of a known size, for bounds on the work of something else: a ratio holds on a machine of any speed."""

from __future__ import annotations

import time
from collections.abc import Callable

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
