"""Files that are written by memory stores: what was written before a SIGKILL is there after it.

No system call is involved, so neither a full disk nor a limit on file sizes can disturb the witness. Files are sparse.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER_BYTES = 64
CAPACITY_BYTES = 1 << 26
FIRST = "0"
"""The serial of a journal's first file."""


class Journal:
    """Appends bytes; a record counts once the length word, the last store, has been written. One writer."""

    def __init__(self, folder: Path, suffix: str, capacity: int = CAPACITY_BYTES) -> None:
        self._folder, self._suffix, self._capacity = folder, suffix, capacity
        self._serials = itertools.count()
        self._open()

    def append(self, content: bytes) -> None:
        """Add a record; ValueError when it is larger than a whole file."""
        if len(content) > self._capacity:
            raise ValueError(f"a record of {len(content)} bytes does not fit into {self._capacity}")
        if self._length + len(content) > self._capacity:
            self.close()
            self._open()
        at = HEADER_BYTES + self._length
        self._mapped[at : at + len(content)] = content
        self._length += len(content)
        self._words[0] = self._length

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._mapped.close()

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._mapped = mapped_file(
            new_path(self._folder, self._suffix, next(self._serials)), HEADER_BYTES + self._capacity
        )
        self._words = memoryview(self._mapped)[:HEADER_BYTES].cast("q")
        self._length = 0


def mapped_file(path: Path, nbytes: int) -> mmap.mmap:
    """A new sparse file, mapped."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


def new_path(folder: Path, suffix: str, serial: int) -> Path:
    """Names sort in the order of their making."""
    return folder / f"{time.time_ns():020d}-{os.getpid()}-{serial}.{suffix}"


class JournalEntries(NamedTuple):
    """What one process wrote into its journal."""

    began_ns: int
    """Unix time."""
    content: bytes


def journals(folder: Path, suffix: str) -> Iterator[JournalEntries]:
    """Process by process, in the order in which they began. A process has one."""
    begun: JournalEntries | None = None
    for path in sorted(folder.glob(f"*.{suffix}")):
        began_ns, _, serial = path.stem.split("-")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(HEADER_BYTES)[:8], "little")
            content = file.read(length)
        if begun is not None and serial != FIRST:
            begun = JournalEntries(begun.began_ns, begun.content + content)
            continue
        if begun is not None:
            yield begun
        begun = JournalEntries(int(began_ns), content)
    if begun is not None:
        yield begun
