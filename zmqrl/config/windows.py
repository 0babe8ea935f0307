"""`hosts.NAME.only`: the times at which a host may have workers. Pure; times are wall clock times without a zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_S = 86_400
_TIMES = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*-\s*(\d{1,2}):(\d\d)(?::(\d\d))?")
_SPAN = re.compile(r"([A-Za-z]+)\s*-\s*([A-Za-z]+)")
HOW = "write times such as 20:00-07:00, days such as Sat or Mon-Fri, or several of them separated by commas"


@dataclass(frozen=True)
class Windows:
    """Open on each of some days, and each day from one second of the day to another."""

    days: frozenset[int]
    """0 is Monday."""
    times: tuple[tuple[int, int], ...]
    """First second, and the first that is not in it; the latter is smaller where midnight is between them."""

    @classmethod
    def of(cls, text: str) -> Windows:
        """Windows of a text such as `20:00-07:00, Sat, Sun`. ValueError: what is wrong, and what to write."""
        days: set[int] = set()
        times = []
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            match = _TIMES.fullmatch(part)
            try:
                if match is not None:
                    times.append(_times(match))
                else:
                    days |= _days(part)
            except ValueError as error:
                raise ValueError(f"{part!r}: {error}" if len(parts) > 1 else str(error)) from None
        windows = cls(frozenset(days), tuple(times))
        if windows.next_change(datetime(2026, 1, 5)) is None:
            raise ValueError("the window never closes; remove the key")
        return windows

    def is_open(self, at: datetime) -> bool:
        """Whether the host may have workers at `at`."""
        second = at.hour * 3600 + at.minute * 60 + at.second
        if at.weekday() in self.days:
            return True
        return any(
            first <= second < end if first < end else second >= first or second < end for first, end in self.times
        )

    def next_change(self, at: datetime) -> datetime | None:
        """When it opens or closes next; None: never."""
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = sorted({0, *(second % DAY_S for pair in self.times for second in pair)})
        edges = (midnight + timedelta(days=day, seconds=second) for day in range(9) for second in seconds)
        return next((edge for edge in edges if edge > at and self.is_open(edge) != self.is_open(at)), None)


def _times(match: re.Match[str]) -> tuple[int, int]:
    hours, minutes, seconds = ([int(match[group] or 0) for group in (first, first + 3)] for first in (1, 2, 3))
    first, end = (h * 3600 + m * 60 + s for h, m, s in zip(hours, minutes, seconds, strict=True))
    if first >= DAY_S or end > DAY_S or max(*minutes, *seconds) > 59:
        raise ValueError("invalid time; times are 00:00 to 23:59, and 24:00 as the end")
    if first == end:
        raise ValueError(f"the window never opens, because its two times are equal; {HOW}")
    return first, end


def _days(part: str) -> set[int]:
    span = _SPAN.fullmatch(part)
    named = span.groups() if span is not None else (part, part)
    known = [name.lower() for name in DAYS]
    try:
        first, last = (known.index(name.lower()) for name in named)
    except ValueError:
        raise ValueError(f"invalid window; {HOW}") from None
    return {(first + days) % 7 for days in range((last - first) % 7 + 1)}
