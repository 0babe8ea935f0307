"""Rows of metrics that the viewer has read: of a file that grows, only what was appended is parsed."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zmqrl.metrics.curves import ROW, rows_of
from zmqrl.metrics.jsonl import WholeRows
from zmqrl.types import Array

MOST_KEPT = 256
"""Metrics of files that are kept: 4 MB each with 100,000 rows."""


@dataclass
class _Read:
    file: tuple[int, int]
    """Device and inode: another file in its place is read from its start."""
    nbytes: int
    rows: Array


class RowCache:
    """Used by several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, str], _Read] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, path: Path, metric: str) -> Array:
        """`[n]` of `ROW` of a metrics.jsonl, up to its last whole line; the same array while none was added.

        OSError: it cannot be read.
        """
        with self._lock:
            found = os.stat(path)
            file, key = (found.st_dev, found.st_ino), (path, metric)
            known = self._kept.pop(key, None)
            if known is None or known.file != file or found.st_size < known.nbytes:
                known = _Read(file, 0, np.empty(0, ROW))
            lines = WholeRows(path, known.nbytes)
            if found.st_size > known.nbytes and len(new := rows_of(lines, metric)):
                known.rows = np.concatenate([known.rows, new])
            known.nbytes = lines.end
            self._kept[key] = known
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return known.rows
