"""Rows of one metric, thinned: all rows of a short run, and means over consecutive rows of a long one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zmqrl.metrics.metric_rows import ROW
from zmqrl.types import Array

MOST_ROWS = 4_096
READ_AT_ONCE = 50_000
"""Rows: 4 MB."""
MOST_ADJUSTED_S = 0.5
"""`wall_s` that decreases by at most so much is of a clock that was adjusted, not of another attempt."""
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
        settled = _settled(self.rows, new) if size > 1 and 0 < len(new) < size else 0
        rows = _joined(_concatenated(self.rows[settled:], new), size)
        rows = _concatenated(self.rows[:settled], rows)
        while len(rows) > MOST_ROWS and size < count:
            size *= 2
            rows = _joined(rows, size)
        return ThinnedRows(rows, size, count)


NO_ROWS = ThinnedRows(np.empty(0, ROW))


def thinned(blocks: Iterable[Array], known: ThinnedRows = NO_ROWS) -> ThinnedRows:
    """`known` with the rows of the blocks that follow. About `READ_AT_ONCE` are held at a time."""
    waiting: list[Array] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) >= READ_AT_ONCE:
            known, waiting = known.plus(_concatenated(*waiting)), []
    return known.plus(_concatenated(*waiting)) if waiting else known


def _settled(rows: Array, new: Array) -> int:
    """How many of the thinned `rows` stay as they are when the rows `new` follow.

    Of each kind in `new`, the last row may be joined with the one before it, unless that is the first one.
    """
    known, kinds = _kinds(rows).T, {*map(tuple, _kinds(new).T.tolist())}
    before = [np.flatnonzero((known == kind).all(axis=1))[-3:] for kind in kinds]
    return min(int(places[0]) if len(places) == 3 else 0 for places in before)


def _concatenated(*rows: Array) -> Array:
    """Without `dtype`, NumPy compares the fields of each array, which takes longer than the copy."""
    return np.concatenate(rows, dtype=ROW)


def _joined(rows: Array, size: int) -> Array:
    """Rows of one kind in one bucket as their mean; not where `wall_s` shows that another attempt begins.

    The first and the last row of a kind stay as they are, so that a curve has its ends, and a resume its begin.
    """
    if size == 1 or not len(rows):
        return rows
    rows = rows[np.lexsort((rows["number"], *_kinds(rows)))]
    before, after, kinds = rows[:-1], rows[1:], _kinds(rows)
    is_other = (kinds[:, 1:] != kinds[:, :-1]).any(axis=0)
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


def _kinds(rows: Array) -> Array:
    """`[4, n]`: rows with equal columns are of one kind."""
    return np.array([*(rows[name] for name in KIND), np.isnan(rows["episodes"])], np.float64)
