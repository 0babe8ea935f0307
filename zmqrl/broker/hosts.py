"""Which hosts hold which workers, and how long each has been silent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Host:
    heard_at: float
    workers: tuple[int, ...]


class Hosts:
    """Receives the reports of each host agent; the learner's host is not judged: if it dies, so does the broker."""

    def __init__(self, learner_host: str, host_lease_s: float) -> None:
        self._learner_host, self._host_lease_s = learner_host, host_lease_s
        self._hosts: dict[str, _Host] = {}

    def hear(self, host: str, workers: Sequence[int], now: float) -> bool:
        """An agent's report; `workers` are the indexes that it holds. True when it was not there before."""
        if host == self._learner_host:
            return False
        known = host in self._hosts
        self._hosts[host] = _Host(now, tuple(workers))
        return not known

    def forget(self, host: str) -> bool:
        """It has ended. True when it was there."""
        return self._hosts.pop(host, None) is not None

    def lost(self, now: float) -> list[tuple[str, tuple[int, ...]]]:
        """Hosts whose lease has run out since the last call, and the workers they held: their processes have ended."""
        gone = [(name, host) for name, host in self._hosts.items() if now - host.heard_at >= self._host_lease_s]
        for name, _ in gone:
            del self._hosts[name]
        return [(name, host.workers) for name, host in gone]
