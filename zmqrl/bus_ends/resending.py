"""When segments that are not accepted are sent again."""

from __future__ import annotations

from collections.abc import Iterable

from zmqrl.types import SegmentId


class Resending:
    """The interval until the next repetition. Pure.

    Whatever is sent waits behind what is in transit. A copy helps where the first one was lost, and otherwise delays
    all that follows it: behind a thin wire copies of whole segments would take its whole throughput. So the interval
    is twice the time that the last acceptance took, and doubles with each repetition.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        """The shortest and the longest interval."""
        self._first_s, self._most_s = first_s, most_s
        self._again_s = first_s
        self._due_at = 0.0
        self._sent_at: dict[SegmentId, float] = {}
        """When each segment that is not accepted was sent for the first time."""

    def is_due(self, now: float) -> bool:
        """Whether everything that is not accepted is to be sent again. `now`, here and below: monotonic seconds."""
        return now >= self._due_at

    def repeat(self) -> None:
        """Everything is going to be sent again; `sent` follows."""
        self._again_s = min(2 * self._again_s, self._most_s)

    def sent(self, ids: Iterable[SegmentId], now: float) -> None:
        """These were sent."""
        for id in ids:
            self._sent_at.setdefault(id, now)
        self._due_at = now + self._again_s

    def not_taken(self, now: float) -> None:
        """Some could not be sent: no copy of them is in transit."""
        self._again_s, self._due_at = self._first_s, now + self._first_s

    def accepted(self, ids: Iterable[SegmentId], now: float) -> None:
        """These were accepted, at least one."""
        took_s = max(now - self._sent_at.pop(id, now) for id in ids)
        self._again_s = min(max(self._first_s, 2 * took_s), self._most_s)
        self._due_at = now + self._again_s

    def restart(self, now: float) -> None:
        """What is in transit is of no use any more: it is for another broker, or under leases that are gone."""
        self._sent_at.clear()
        self._again_s, self._due_at = self._first_s, now
