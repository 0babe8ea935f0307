"""Planted defects, which the drill has to find: the witness's learner spoils segments before it records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array

EVERY = 10
"""Often enough that one is left of the rounds that no learner rolls back from."""
Columns: TypeAlias = Mapping[str, Array]
Defect: TypeAlias = Callable[[Columns, Columns], None]
"""Writes into a segment. The second argument is a copy of the segment before it of its vector env."""


def lose(columns: Columns, before: Columns) -> None:
    """The rows of an accepted segment do not reach the learner."""
    del before
    columns["valid"][:] = False


def double(columns: Columns, before: Columns) -> None:
    """The learner receives a segment twice, the second time in the place of another."""
    for name, column in columns.items():
        column[:] = before[name]


def tear(columns: Columns, before: Columns) -> None:
    """The last half of a segment is overwritten while it is read: it has the rows of an older one."""
    for name, column in columns.items():
        half = len(column) // 2
        column[half:] = before[name][half:]


DEFECTS: Mapping[str, Defect] = {"lose": lose, "double": double, "tear": tear}


class Spoiler:
    """Applies a defect to every `EVERY`-th segment."""

    def __init__(self, defect: Defect) -> None:
        self._defect = defect
        self._taken = 0
        self._before: dict[int, Columns] = {}

    def spoiled(self, batch: SegmentBatch) -> Columns:
        """Copies of the columns of `batch`, some segments spoiled."""
        columns = {name: np.array(column) for name, column in batch.columns.items()}
        width = columns["valid"].shape[1] // len(batch.metas)
        for place, meta in enumerate(batch.metas):
            segment = {name: column[:, place * width : (place + 1) * width] for name, column in columns.items()}
            self._taken += 1
            before = self._before.get(meta.id.vector_env)
            if self._taken % EVERY == 0 and before is not None:
                self._defect(segment, before)
            self._before[meta.id.vector_env] = {name: column.copy() for name, column in segment.items()}
        return columns
