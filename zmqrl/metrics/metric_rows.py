"""Rows of a growing `metrics.jsonl`, for one metric: what a curve needs of them, as an array."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from zmqrl.metrics.attempts import FORMER
from zmqrl.metrics.jsonl import FIRST, SCORE, Lines, rows_in
from zmqrl.types import Array

COUNTS = {"wall_s": 0.0, "env_steps": 0.0, "updates": 0.0, "episodes": math.nan, "attempt": FORMER}
"""Columns that each metric needs, and their number in rows without one: scores have no episodes."""
ABSENT = -sys.float_info.max
"""A number that no metric has."""
MOST_NAMES, MOST_FIELDS = 4_096, 256
ROW = np.dtype(
    [
        *((name, np.float64) for name in (*COUNTS, "value")),
        ("number", np.int64),
        ("rows", np.int64),
        ("is_measured", np.bool_),
        ("is_score", np.bool_),
    ],
    align=True,
)
"""Row of metrics.jsonl, for one metric: `value` counts where `is_measured`; `is_score`: of the evaluator.

Of several rows, means, the `number` of the first one in the file, and how many there are.
"""


class MetricRows:
    """Arrays `[n]` of `ROW`: the rows from byte `end` on, a block of lines each.

    A block of rows that have no other names than those before it is decoded at once. Any other block takes five times
    as long.
    """

    def __init__(self, path: Path, metric: str, end: int = 0, names: Iterable[str] = (), cut_too: bool = False) -> None:
        """`names`: of the rows before `end`. Otherwise as `Lines`."""
        self.lines, self._metric = Lines(path, end, cut_too), metric
        self.names = dict.fromkeys(names)
        """Names in the rows, about `MOST_NAMES` at most."""
        self.unreadable = 0
        """Lines that are not a row."""

    def __iter__(self) -> Iterator[Array]:
        return map(self._rows, self.lines)

    def _rows(self, lines: bytes) -> Array:
        if 0 < len(self.names) <= MOST_FIELDS:
            with suppress(ValueError, RecursionError):  # other rows, or a name that no field can have
                return self._decoded(lines)
        rows = rows_in(lines)
        found = [row for row in rows if row is not None]
        self.unreadable += len(rows) - len(found)
        for row in found if len(self.names) < MOST_NAMES else ():
            self.names.update(dict.fromkeys(row))
        return rows_of(found, self._metric)

    def _decoded(self, lines: bytes) -> Array:
        fields = {name: f"n{k}" for k, name in enumerate(self.names)}
        rows = _decoder(tuple(fields.items())).decode_lines(lines)

        def column(name: str) -> Array:
            field = fields.get(name)
            if field is None:
                return np.full(len(rows), ABSENT)
            return np.fromiter(map(attrgetter(field), rows), np.float64, len(rows))

        return _rows_from(np.stack([column(name) for name in _needed(self._metric, fields)]))


def rows_of(rows: Sequence[Mapping[str, float]], metric: str) -> Array:
    """The rows as `[n]` of `ROW`."""
    needed = _needed(metric, {name for row in rows for name in row})
    return _rows_from(np.array([[row.get(name, ABSENT) for row in rows] for name in needed], np.float64))


def _needed(metric: str, names: Iterable[str]) -> list[str]:
    """The columns of a table of which rows are made."""
    return [*COUNTS, metric, *(name for name in names if name.startswith(SCORE))]


def _rows_from(table: Array) -> Array:
    """`table`: `[columns, n]`, a column for each name of `_needed`."""
    is_there, found = table != ABSENT, np.zeros(table.shape[1], ROW)
    for k, (name, default) in enumerate(COUNTS.items()):
        found[name] = np.where(is_there[k], table[k], default)
    is_measured, *is_score = is_there[len(COUNTS) :]
    found["value"], found["is_measured"] = np.where(is_measured, table[len(COUNTS)], 0.0), is_measured
    found["is_score"], found["rows"] = np.any(is_score, axis=0), 1
    return found


@lru_cache(maxsize=64)
def _decoder(fields: tuple[tuple[str, str], ...]) -> msgspec.json.Decoder[Any]:
    """Decoder of rows that have no other names than these, each with a field of its own."""
    types = [(field, float, msgspec.NODEFAULT if name in FIRST else ABSENT) for name, field in fields]
    renamed = {field: name for name, field in fields}
    kind = msgspec.defstruct("NumberRow", types, rename=renamed, forbid_unknown_fields=True, kw_only=True, gc=False)
    return msgspec.json.Decoder(kind)
