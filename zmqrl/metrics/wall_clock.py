"""Wall clock over the attempts of a run: `wall_s` of its rows counts from the start of each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

MOST_ADJUSTED_S = 0.5
"""`wall_s` that decreases by at most so much is of a clock that was adjusted, not of another attempt."""


def cumulative_wall_s(rows: Sequence[Mapping[str, float]]) -> list[float]:
    """Of each row: the seconds of all earlier attempts, up to their last row, and those of its own attempt."""
    wall_s = [row["wall_s"] for row in rows]
    starts = [0, *_starts(wall_s, [any(name.startswith("eval_") for name in row) for row in rows])]
    earlier_s, total = 0.0, []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        total += [earlier_s + seconds for seconds in wall_s[start:end]]
        earlier_s = max(total, default=0.0)
    return total


def _starts(wall_s: Sequence[float], is_score: Sequence[bool]) -> Iterator[int]:
    """Where `wall_s` decreases, of rows of training or of scores: those come late among the others."""
    last_s: dict[bool, float] = {}
    for k, seconds in enumerate(wall_s):
        if seconds < last_s.get(is_score[k], 0.0) - MOST_ADJUSTED_S:
            start = k
            while not is_score[k] and is_score[start - 1] and wall_s[start - 1] <= seconds:
                start -= 1
            yield start
            last_s.clear()
        last_s[is_score[k]] = seconds
