"""FETCH: published weights for hosts that do not see the store, out of the buffer that this host's agent verified."""

from __future__ import annotations

from typing import Protocol

from zmqrl.messages import bus, frames
from zmqrl.types import Notice, Version

PART_BYTES = 16 << 20
"""Most bytes of one frame: below the limit that every socket has."""


class Buffer(Protocol):
    """`zmqrl.shared_memory.weights.WeightsReader`."""

    def version(self, n: int | None = None) -> Version | None:
        """The newest version, or the one of number `n`, if it is there; cheap."""
        ...

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        """A whole copy of it."""
        ...


class WeightsServer:
    """Who requested which version, until it is there. One thread."""

    def __init__(self, buffer: Buffer | None) -> None:
        self._buffer = buffer
        self._requested: dict[bytes, Version] = {}
        self._frames: list[bytes] = []
        self._version: Version | None = None

    @property
    def waiting(self) -> bool:
        """Whether a process requested a version that is on its way."""
        return bool(self._requested)

    def request(self, peer: bytes, version: Version) -> None:
        """`peer` requests `version`, or the newest one where it is gone; its last request counts."""
        self._requested[peer] = version

    def pop_ready(self) -> list[tuple[bytes, list[bytes]]]:
        """Peers whose wish can be met now, each with its reply."""
        newest = self._buffer.version() if self._buffer is not None and self._requested else None
        if self._buffer is None or newest is None:
            return []
        ready = [(version, peer) for peer, version in self._requested.items() if version <= newest]
        replies = []
        for version, peer in sorted(ready):
            there = version if self._buffer.version(version.n) == version else newest
            if there != self._version:
                self._load(self._buffer, there.n)
            del self._requested[peer]
            replies.append((peer, self._frames))
        return replies

    def _load(self, buffer: Buffer, n: int) -> None:
        """Copied once for all hosts that request it."""
        found = buffer.read(n)
        if found is None:
            return
        notice, content = found
        parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        self._frames = [frames.pack(bus.Weights(notice, len(parts))), *parts]
        self._version = notice.version
