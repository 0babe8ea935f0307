"""The host lease: an agent whose lease is not renewed ends its processes. Pure.

End of file on stdin is not enough: a launcher that is stopped, or behind a cut cable, closes nothing.
"""

from __future__ import annotations

from zmqrl.messages.agent import Source


class HostLease:
    """Renewed by each of its sources; one that is silent for the lease is enough to end it."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._renewed_at: dict[Source, float] = {}

    def renew(self, source: Source, now: float) -> None:
        """`source` lives; after its first renewal, renewals are required. `now` in seconds of one clock."""
        self._renewed_at[source] = now

    def silent(self, now: float) -> Source | None:
        """The source whose lease has run out, if any."""
        for source, at in self._renewed_at.items():
            if now - at >= self._lease_s:
                return source
        return None
