"""Rows of one metric, thinned: all rows of a short run, and means over consecutive rows of a long one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from zmqrl.metrics.attempts import FORMER, is_score_row
from zmqrl.types import Array

MOST_ROWS = 4_096
READ_AT_ONCE = 50_000
"""Rows: 4 MB."""
MOST_ADJUSTED_S = 0.5
"""`wall_s` that decreases by at most so much is of a clock that was adjusted, not of another attempt."""
ROW = np.dtype(
    [
        ("wall_s", np.float64),
        ("env_steps", np.float64),
        ("updates", np.float64),
        ("episodes", np.float64),
        ("value", np.float64),
        ("is_measured", np.bool_),
        ("is_score", np.bool_),
        ("attempt", np.float64),
        ("number", np.int64),
        ("rows", np.int64),
    ]
)
"""Row of metrics.jsonl, for one metric: `value` counts where `is_measured`; `is_score`: of the evaluator.

`episodes` is NaN in rows without it, as scores are. Of several rows, means, the `number` of the first one in the file,
and how many there are.
"""
MEANS = ("wall_s", "env_steps", "updates", "episodes", "value")
KIND = ("attempt", "is_score", "is_measured")


@dataclass(frozen=True)
class ThinnedRows:
    """What a curve needs of `count` rows, from the first on: the same whether they were added at once or in parts.

    The file is divided into buckets of `size` rows. A row here is the mean of those of one kind and attempt in a
    bucket. When there are more than `MOST_ROWS`, the size is doubled. A run with fewer rows has them unchanged.
    """

    rows: Array
    """`[n]` of `ROW`, in the order of the file."""
    size: int = 1
    count: int = 0

    def plus(self, new: Array) -> ThinnedRows:
        """These rows and the rows `new`, which follow in the file."""
        new = new.copy()
        new["number"] = np.arange(self.count, self.count + len(new))
        size, count = self.size, self.count + len(new)
        rows = _joined(np.concatenate([self.rows, new]), size)
        while len(rows) > MOST_ROWS and size < count:
            size *= 2
            rows = _joined(rows, size)
        return ThinnedRows(rows, size, count)


NO_ROWS = ThinnedRows(np.empty(0, ROW))


def thinned(rows: Iterable[dict[str, float]], metric: str, known: ThinnedRows = NO_ROWS) -> ThinnedRows:
    """`known` with the rows that follow. At most `READ_AT_ONCE` are held at a time."""
    following = iter(rows)
    while len(new := rows_of(islice(following, READ_AT_ONCE), metric)):
        known = known.plus(new)
    return known


def rows_of(rows: Iterable[dict[str, float]], metric: str) -> Array:
    """`[n]` of `ROW`: what a series needs of each row. A file of days has millions of values of other metrics."""
    found = (
        (
            row["wall_s"],
            row["env_steps"],
            row.get("updates", 0.0),
            row.get("episodes", math.nan),
            row.get(metric, 0.0),
            metric in row,
            is_score_row(row),
            row.get("attempt", FORMER),
            0,
            1,
        )
        for row in rows
    )
    return np.fromiter(found, ROW)


def _joined(rows: Array, size: int) -> Array:
    """Rows of one kind in one bucket as their mean; not where `wall_s` shows that another attempt begins.

    The first and the last row of a kind stay as they are, so that a curve has its ends, and a resume its begin.
    """
    if size == 1 or not len(rows):
        return rows
    rows = rows[np.lexsort((rows["number"], *_kinds(rows)))]
    before, after = rows[:-1], rows[1:]
    is_other = np.any([kind[1:] != kind[:-1] for kind in _kinds(rows)], axis=0)
    is_end = np.concatenate([[True], is_other]) | np.concatenate([is_other, [True]])
    is_in_bucket = before["number"] // size == after["number"] // size
    is_later = after["wall_s"] >= before["wall_s"] - MOST_ADJUSTED_S
    is_joined = is_in_bucket & is_later & ~is_end[:-1] & ~is_end[1:]
    starts = np.flatnonzero(np.concatenate([[True], ~is_joined]))
    joined = rows[starts]
    joined["rows"] = np.add.reduceat(rows["rows"], starts)
    for name in MEANS:
        joined[name] = np.add.reduceat(rows[name] * rows["rows"], starts) / joined["rows"]
    in_order: Array = joined[np.argsort(joined["number"])]
    return in_order


def _kinds(rows: Array) -> tuple[Array, ...]:
    return *(rows[name] for name in KIND), np.isnan(rows["episodes"])
