"""Which hosts hold which workers, and how long each has been silent. Pure."""

from __future__ import annotations

JOIN_S = 10.0
"""What a host may take, beyond its lease, from its place on the allow-list to its first report."""


class Hosts:
    """Receives the reports of each host agent; the learner's host is not judged: if it dies, so does the broker."""

    def __init__(self, learner_host: str, host_lease_s: float) -> None:
        self._learner_host, self._host_lease_s = learner_host, host_lease_s
        self._lost_at: dict[str, float] = {}
        self._here: set[str] = set()

    def expect(self, host: str, now: float) -> None:
        """It may report from now on, and is lost when it does not."""
        self._lost_at[host] = now + JOIN_S + self._host_lease_s

    def hear(self, host: str, now: float) -> bool:
        """The report of an agent that holds workers. True when it was not there before."""
        if host == self._learner_host:
            return False
        known = host in self._here
        self._here.add(host)
        self._lost_at[host] = now + self._host_lease_s
        return not known

    def leave(self, host: str) -> bool:
        """The report of an agent that holds no workers. True when it was there; one that was not is still expected."""
        was_here = host in self._here
        if was_here:
            self.forget(host)
        return was_here

    def forget(self, host: str) -> None:
        """It is not judged any more."""
        self._here.discard(host)
        self._lost_at.pop(host, None)

    def lost(self, now: float) -> list[str]:
        """Hosts whose lease has run out since the last call: their processes have ended."""
        gone = [host for host, at in self._lost_at.items() if now >= at]
        for host in gone:
            self.forget(host)
        return gone
