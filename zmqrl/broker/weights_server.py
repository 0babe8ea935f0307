"""FETCH: published weights for hosts that do not see the store, out of the buffer that this host's agent verified."""

from __future__ import annotations

from zmqrl.messages import bus, frames
from zmqrl.shared_memory.weights import WeightsSource
from zmqrl.types import Version

PART_BYTES = 16 << 20
"""Most bytes of one frame: below the limit that every socket has."""


class WeightsServer:
    """Who requested which version, until it is there. One thread."""

    def __init__(self, buffer: WeightsSource | None, rounds_ahead: int = 0) -> None:
        """`rounds_ahead`: of the mode. So many versions before the newest one are still needed."""
        self._buffer, self._ahead = buffer, rounds_ahead
        self._requested: dict[bytes, Version] = {}
        self._frames: list[bytes] = []
        self._version: Version | None = None

    @property
    def waiting(self) -> bool:
        """Whether a process requested a version that is on its way."""
        return bool(self._requested)

    def request(self, peer: bytes, version: Version) -> None:
        """`peer` requests `version`, or where it is gone the oldest one that is needed; its last request counts."""
        self._requested[peer] = version

    def pop_ready(self) -> list[tuple[bytes, list[bytes]]]:
        """Peers whose wish can be met now, each with its reply."""
        newest = self._buffer.version() if self._buffer is not None and self._requested else None
        if self._buffer is None or newest is None:
            return []
        ready = [(version, peer) for peer, version in self._requested.items() if version <= newest]
        oldest = self._buffer.version(newest.n - self._ahead) or newest
        replies = []
        for version, peer in sorted(ready):
            there = version if self._buffer.version(version.n) == version else oldest
            if there == self._version or self._load(self._buffer, there):
                del self._requested[peer]
                replies.append((peer, self._frames))
        return replies

    def _load(self, buffer: WeightsSource, version: Version) -> bool:
        """Copied once for all hosts that request it. False where the next versions have replaced it."""
        found = buffer.read(version.n)
        if found is None or found[0].version != version:
            return False
        notice, content = found
        parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        self._frames = [frames.pack(bus.Weights(notice, len(parts))), *parts]
        self._version = notice.version
        return True
