"""How long each worker needs for a segment, from what the workers count themselves. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_S = 10.0
LEAST_S = 2.0
LEAST_SEGMENTS = 2


class _Sample(NamedTuple):
    at: float
    segments: int
    busy_s: float


class SegmentTimes:
    """Seconds that a worker steps for one segment, its waits excluded: the mean of the last `WINDOW_S`, or longer.

    The first segments of a process, up to its first report, do not count: they include what an env loads.
    """

    def __init__(self) -> None:
        self._samples: dict[int, tuple[int, deque[_Sample]]] = {}
        """Samples by worker: its spawn, and its counts where they changed."""

    def report(self, index: int, spawn: int, segments: int, busy_s: float, at: float) -> None:
        """What process `spawn` has sealed since its start, and the seconds that it stepped for that."""
        if not segments:
            return
        known = self._samples.get(index)
        if known is None or known[0] != spawn:
            known = self._samples[index] = spawn, deque()
        samples = known[1]
        if samples and samples[-1].segments >= segments:
            return
        samples.append(_Sample(at, segments, busy_s))
        while len(samples) > 2 and at - samples[1].at >= WINDOW_S and segments - samples[1].segments >= LEAST_SEGMENTS:
            samples.popleft()

    def of(self, index: int) -> float | None:
        """Seconds per segment; None while too little is known. Of a worker without vector envs: those of before."""
        known = self._samples.get(index)
        if known is None:
            return None
        first, last = known[1][0], known[1][-1]
        segments = last.segments - first.segments
        if segments < LEAST_SEGMENTS or last.at - first.at < LEAST_S:
            return None
        return (last.busy_s - first.busy_s) / segments
