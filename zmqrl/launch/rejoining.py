"""Which lost hosts are connected to again, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zmqrl.launch.host_table import HostRow, HostTable

FIRST_S, MOST_S, MOST_AFTER_RETURN_S = 0.5, 2.0, 5.0
"""Wait before the first attempt, which doubles up to the longest; and the longest for a host that is lost again soon
after it returned."""
LONG_S, SELDOM_S = 600.0, 30.0
"""A host that has been away for so long is tried so often."""
SETTLED_S = 60.0
"""So long a host has to be ready before its next loss counts as the first."""


@dataclass
class _Lost:
    since: float
    next_at: float
    backoff_s: float = FIRST_S
    """Doubles with each attempt, up to `MOST_AFTER_RETURN_S`."""
    ready_since: float | None = None


class Rejoining:
    """Hosts that have participated and are lost. Hosts that never joined have a fault that their user has to fix."""

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._returned: list[tuple[HostRow, float]] = []

    def pop_returned(self) -> list[tuple[HostRow, float]]:
        """Hosts that have come back since the last call, and how many seconds they were away."""
        returned, self._returned = self._returned, []
        return returned

    def due(self, hosts: HostTable, now: float) -> list[HostRow]:
        """Hosts to connect to now, in monotonic seconds; each is `connecting` before the next call."""
        found = []
        for row in hosts:
            if row.is_missing and row.incarnation and (row.workers or row.is_kept) and row is not hosts.learner:
                if self._attempt(row.host, now):
                    found.append(row)
            elif row.host in self._lost:
                self._settle(row, now)
        return found

    def _attempt(self, host: str, now: float) -> bool:
        lost = self._lost.setdefault(host, _Lost(now, now + FIRST_S))
        if lost.ready_since is not None:  # it was here for a while
            lost.since, lost.ready_since = now, None
            lost.next_at = now + self._delay_s(lost, now, MOST_AFTER_RETURN_S)
        if now < lost.next_at:
            return False
        lost.backoff_s = min(2 * lost.backoff_s, MOST_AFTER_RETURN_S)
        lost.next_at = now + self._delay_s(lost, now, MOST_S)
        return True

    def _delay_s(self, lost: _Lost, now: float, most_s: float) -> float:
        return SELDOM_S if now - lost.since >= LONG_S else min(most_s, lost.backoff_s)

    def _settle(self, row: HostRow, now: float) -> None:
        lost = self._lost[row.host]
        if row.state in ("drained", "ended"):
            del self._lost[row.host]
        elif row.state == "ready":
            if lost.ready_since is None:
                lost.ready_since = now
                self._returned.append((row, now - lost.since))
            if now - lost.ready_since >= SETTLED_S:
                del self._lost[row.host]
