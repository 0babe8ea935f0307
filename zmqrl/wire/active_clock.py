"""A clock for judging the silence of others: it does not count the time in which the judge itself could not listen."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.5
"""The longest wait of the loops that use it."""
TURN_HEARTBEATS = 2


class ActiveClock:
    """Monotonic seconds without freezes of this process (SIGSTOP, a VM pause): no other process may have run in them.

    Of the time between two calls it counts one long turn of a loop at most: a process whose turns are always longer
    still reaches every deadline, later.
    """

    def __init__(self, heartbeat_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_turn_s = POLL_S + TURN_HEARTBEATS * heartbeat_s
        self._clock, self._seen, self._away_s = clock, clock(), 0.0

    def now(self) -> float:
        """To be called in every turn."""
        seen = self._clock()
        self._away_s += max(0.0, seen - self._seen - self._longest_turn_s)
        self._seen = seen
        return seen - self._away_s
