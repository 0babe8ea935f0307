"""Published weights on one host: a memfd with two buffers, written in turn, so that readers need no lock.

Each buffer begins and ends with the same version word; a reader that finds them different, or changed after its copy,
copies again. One writer (the host agent), any number of readers (its workers). The version before the newest one can
be read until the next one is written.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol

import msgspec

from zmqrl.errors import DeadlineExceeded
from zmqrl.types import Notice, Version

HEADER_BYTES = 4096
NEWEST, CAPACITY = 0, 1
BUFFER_WORDS_AT = 8
BUFFER_WORDS = 8
BEGIN, END, INCARNATION, N, NOTICE_BYTES, PAYLOAD_BYTES = range(6)
NOTICE_MAX = 16_384
SPARE = 1.25
READ_ATTEMPTS = 1000
_notice = msgspec.json.Decoder(Notice).decode


def _words(mapped: mmap.mmap) -> memoryview:
    return memoryview(mapped)[:HEADER_BYTES].cast("q")


def _sequence(words: memoryview, n: int | None) -> int:
    """Sequence number of the newest version, or of the one of number `n`; 0 when it is not there.

    A version of another learner incarnation than the newest is not there: the learner may have rolled back from it.
    """
    newest: int = words[NEWEST]
    if n is None:
        return newest
    incarnation = words[BUFFER_WORDS_AT + (newest & 1) * BUFFER_WORDS + INCARNATION]
    for sequence in (newest, newest - 1):
        at = BUFFER_WORDS_AT + (sequence & 1) * BUFFER_WORDS
        is_whole = sequence > 0 and words[at + BEGIN] == sequence == words[at + END]
        if is_whole and (words[at + INCARNATION], words[at + N]) == (incarnation, n):
            return sequence
    return 0


class WeightsWriter:
    """The agent's end. The first version sizes the memfd; all versions of a run are of one size."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mapped: mmap.mmap | None = None
        self._sequence = 0

    def write(self, notice: Notice, payload: bytes) -> None:
        """Make `payload` the newest version. ValueError when it outgrew the first version by more than a quarter."""
        if self._mapped is None:
            self._map(len(payload))
        assert self._mapped is not None
        words, text = _words(self._mapped), msgspec.json.encode(notice)
        capacity = words[CAPACITY]
        if len(text) + len(payload) > capacity:
            raise ValueError(f"weights of {len(payload)} bytes do not fit into a buffer of {capacity}")
        self._sequence += 1
        at = BUFFER_WORDS_AT + (self._sequence & 1) * BUFFER_WORDS
        start = HEADER_BYTES + (self._sequence & 1) * capacity
        words[at + BEGIN] = self._sequence
        words[at + INCARNATION], words[at + N] = notice.version
        words[at + NOTICE_BYTES], words[at + PAYLOAD_BYTES] = len(text), len(payload)
        self._mapped[start : start + len(text)] = text
        self._mapped[start + len(text) : start + len(text) + len(payload)] = payload
        words[at + END] = self._sequence
        words[NEWEST] = self._sequence

    def _map(self, payload_bytes: int) -> None:
        capacity = -(-int(payload_bytes * SPARE + NOTICE_MAX) // 4096) * 4096
        os.posix_fallocate(self._fd, 0, HEADER_BYTES + 2 * capacity)
        self._mapped = mmap.mmap(self._fd, HEADER_BYTES + 2 * capacity)
        _words(self._mapped)[CAPACITY] = capacity


class WeightsSource(Protocol):
    """Where published weights come from: `WeightsReader`, or in single mode the store."""

    def version(self, n: int | None = None) -> Version | None:
        """The newest version, or the one of number `n`, if it is there; cheap."""
        ...

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        """A whole copy of it."""
        ...


class WeightsReader:
    """A worker's end of the inherited memfd."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mapped: mmap.mmap | None = None
        self._words: memoryview | None = None

    def version(self, n: int | None = None) -> Version | None:
        """The newest version, or the one of number `n`; None when it is not there. A few loads, no copy."""
        words = self._attached()
        sequence = 0 if words is None else _sequence(words, n)
        if words is None or not sequence:
            return None
        at = BUFFER_WORDS_AT + (sequence & 1) * BUFFER_WORDS
        return Version(words[at + INCARNATION], words[at + N])

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        """A whole copy of the newest version, or of the one of number `n`; None when it is not there."""
        words = self._attached()
        if words is None or self._mapped is None:
            return None
        for _ in range(READ_ATTEMPTS):
            sequence = _sequence(words, n)
            if not sequence:
                return None
            at = BUFFER_WORDS_AT + (sequence & 1) * BUFFER_WORDS
            start = HEADER_BYTES + (sequence & 1) * words[CAPACITY]
            middle = start + words[at + NOTICE_BYTES]
            text, payload = self._mapped[start:middle], self._mapped[middle : middle + words[at + PAYLOAD_BYTES]]
            if words[at + BEGIN] == sequence == words[at + END]:
                return _notice(text), payload
        raise DeadlineExceeded(f"the weights changed {READ_ATTEMPTS} times while they were being read")

    def _attached(self) -> memoryview | None:
        if self._words is None:
            size = os.fstat(self._fd).st_size
            if size:
                self._mapped = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
                self._words = _words(self._mapped)
        return self._words
