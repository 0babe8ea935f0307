"""Rows of metrics that the viewer has read: of a file that grows, only what was appended is parsed.

They are thinned, and kept on disk for the next start of the viewer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from zmqrl.config.paths import regular
from zmqrl.errors import ConfigError
from zmqrl.metrics.metric_rows import ROW, MetricRows
from zmqrl.metrics.thinning import MOST_ROWS, NO_ROWS, ThinnedRows, thinned
from zmqrl.wire.kept_files import keep, own_cache, read_kept

MOST_KEPT = 512
"""Metrics of files in memory: at most 0.3 MB each."""
HEAD_BYTES = 4_096
KEPT_EVERY_BYTES = 65_536
"""So much is read again at most: 3 ms. Shorter files are not kept on disk."""
UNUSED_S = 30 * 86_400.0
"""Age from which a file of the cache is removed."""
_FORMAT = (2, MOST_ROWS, ROW.descr)


class ReadMetric(msgspec.Struct):
    """A metric of one file, up to byte `nbytes`; the content of a file of the cache."""

    inode: int = 0
    nbytes: int = 0
    kept_nbytes: int = 0
    head_bytes: int = 0
    head: bytes = b""
    """Another file in its place is read from its start."""
    names: list[str] = []
    """Names in its rows."""
    thinned: ThinnedRows = NO_ROWS

    def is_of(self, path: Path, found: os.stat_result) -> bool:
        """Whether the file still begins with what was read."""
        is_same = found.st_ino == self.inode and found.st_size >= self.nbytes
        return is_same and _head(path, self.head_bytes) == self.head

    def read(self, path: Path, metric: str) -> None:
        """The rows that were appended."""
        rows = MetricRows(path, metric, self.nbytes, self.names)
        self.thinned = thinned(rows, self.thinned)
        self.nbytes, self.names = rows.lines.end, [*rows.names]
        if self.head_bytes < HEAD_BYTES:
            self.head_bytes = min(self.nbytes, HEAD_BYTES)
            self.head = _head(path, self.head_bytes)


class RowCache:
    """Used by several threads."""

    def __init__(self) -> None:
        self._folder = own_cache("view")
        self._known: OrderedDict[tuple[Path, str], ReadMetric] = OrderedDict()
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            for old in self._folder.glob("*.rows"):
                if time.time() - old.stat().st_mtime > UNUSED_S:
                    old.unlink()

    def current(self, path: Path, metric: str) -> ReadMetric:
        """A metric of a metrics.jsonl, thinned. OSError: it cannot be read."""
        with self._lock:
            found, key = os.stat(path), (path, metric)
            known = self._known.pop(key, None) or self._load(path, metric, found)
            if not (found.st_size == known.nbytes and found.st_ino == known.inode):
                known = known if known.is_of(path, found) else ReadMetric()
                known.inode = found.st_ino
                known.read(path, metric)
            self._known[key] = known
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
            if known.nbytes - known.kept_nbytes >= KEPT_EVERY_BYTES:
                known.kept_nbytes = known.nbytes
                self._keep(self._file(path, metric), known)
            return known

    def _file(self, path: Path, metric: str) -> Path:
        key = repr((_FORMAT, str(path.absolute()), metric))
        return self._folder / f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}.rows"

    def _load(self, path: Path, metric: str, found: os.stat_result) -> ReadMetric:
        """What an earlier viewer has read. A damaged file, and one of another user, are as none."""
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            content = read_kept(self._file(path, metric)) or b""
            known = msgspec.msgpack.decode(content, type=ReadMetric)
            known.thinned = replace(known.thinned, rows=np.frombuffer(known.thinned.rows, ROW))
            if known.is_of(path, found):
                return known
        return ReadMetric()

    def _keep(self, file: Path, known: ReadMetric) -> None:
        with contextlib.suppress(OSError, ValueError, ConfigError):  # without it, the next viewer reads everything
            keep(file, msgspec.msgpack.encode(known, enc_hook=np.ndarray.tobytes))


def _head(path: Path, nbytes: int) -> bytes:
    with open(path, "rb", opener=regular) as file:
        return hashlib.sha256(file.read(nbytes)).digest()
