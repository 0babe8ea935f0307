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
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from zmqrl.config.paths import regular
from zmqrl.errors import ConfigError
from zmqrl.metrics.jsonl import WholeRows
from zmqrl.metrics.thinning import MOST_ROWS, NO_ROWS, ROW, ThinnedRows, thinned
from zmqrl.types import Array
from zmqrl.wire.kept_files import keep, own_cache, read_kept

MOST_KEPT = 512
"""Metrics of files in memory: at most 0.3 MB each."""
MOST_NAMES = 4_096
HEAD_BYTES = 4_096
KEPT_EVERY_BYTES = 65_536
"""So much is read again at most: 3 ms. Shorter files are not kept on disk."""
UNUSED_S = 30 * 86_400.0
"""Age from which a file of the cache is removed."""
_FORMAT = (1, MOST_ROWS, ROW.descr)


class _Stored(msgspec.Struct, array_like=True):
    """File of the cache."""

    inode: int
    head_bytes: int
    head: bytes
    nbytes: int
    size: int
    count: int
    names: list[str]
    rows: bytes


class _Read:
    """A metric of one file, up to its last whole line."""

    def __init__(self) -> None:
        self.inode, self.nbytes, self.kept_nbytes = 0, 0, 0
        self.head_bytes, self.head = 0, b""
        """Another file in its place is read from its start."""
        self.names = set[str]()
        self.thinned = NO_ROWS

    def is_of(self, path: Path, found: os.stat_result) -> bool:
        is_same = found.st_ino == self.inode and found.st_size >= self.nbytes
        return is_same and _head(path, self.head_bytes) == self.head

    def read(self, path: Path, metric: str) -> None:
        """The rows that were appended."""
        lines = WholeRows(path, self.nbytes)
        self.thinned = thinned(self._named(lines), metric, self.thinned)
        self.nbytes = lines.end
        if self.head_bytes < HEAD_BYTES:
            self.head_bytes = min(self.nbytes, HEAD_BYTES)
            self.head = _head(path, self.head_bytes)

    def _named(self, rows: Iterable[dict[str, float]]) -> Iterator[dict[str, float]]:
        for row in rows:
            if len(self.names) < MOST_NAMES:
                self.names.update(row)
            yield row


class RowCache:
    """Used by several threads."""

    def __init__(self) -> None:
        self._folder = own_cache("view")
        self._known: OrderedDict[tuple[Path, str], _Read] = OrderedDict()
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            for old in self._folder.glob("*.rows"):
                if time.time() - old.stat().st_mtime > UNUSED_S:
                    old.unlink()

    def rows(self, path: Path, metric: str) -> Array:
        """`[n]` of `ROW` of a metrics.jsonl, thinned; the same array while no row was added.

        OSError: it cannot be read.
        """
        return self._current(path, metric).thinned.rows

    def names(self, path: Path, metric: str) -> set[str]:
        """Names in the rows that `rows` has read. OSError: it cannot be read."""
        return self._current(path, metric).names.copy()

    def _current(self, path: Path, metric: str) -> _Read:
        with self._lock:
            found, key = os.stat(path), (path, metric)
            known = self._known.pop(key, None) or self._load(path, metric, found)
            if not (found.st_size == known.nbytes and found.st_ino == known.inode):
                known = known if known.is_of(path, found) else _Read()
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

    def _load(self, path: Path, metric: str, found: os.stat_result) -> _Read:
        """What an earlier viewer has read. A damaged file, and one of another user, are as none."""
        known = _Read()
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            stored = msgspec.msgpack.decode(read_kept(self._file(path, metric)) or b"", type=_Stored)
            known.thinned = ThinnedRows(np.frombuffer(stored.rows, ROW), stored.size, stored.count)
            known.names.update(stored.names)
            known.head_bytes, known.head = stored.head_bytes, stored.head
            known.inode, known.nbytes, known.kept_nbytes = stored.inode, stored.nbytes, stored.nbytes
        return known if known.is_of(path, found) else _Read()

    def _keep(self, file: Path, known: _Read) -> None:
        thinned, names = known.thinned, sorted(known.names)
        head = (known.inode, known.head_bytes, known.head, known.nbytes)
        stored = _Stored(*head, thinned.size, thinned.count, names, thinned.rows.tobytes())
        with contextlib.suppress(OSError, ValueError, ConfigError):  # without it, the next viewer reads everything
            keep(file, msgspec.msgpack.encode(stored))


def _head(path: Path, nbytes: int) -> bytes:
    with open(path, "rb", opener=regular) as file:
        return hashlib.sha256(file.read(nbytes)).digest()
