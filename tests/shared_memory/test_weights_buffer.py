"""Readers of the weights buffer see whole versions, whatever the writer does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from msgspec import structs

from tests.support.waiting import WAIT_S
from zmqrl.errors import DeadlineExceeded
from zmqrl.shared_memory.weights import BEGIN, BUFFER_WORDS, BUFFER_WORDS_AT, NEWEST, WeightsReader, WeightsWriter
from zmqrl.types import Notice, Version

HAMMER = """
import sys
from zmqrl.shared_memory.weights import WeightsWriter
from zmqrl.types import Notice, Version
writer = WeightsWriter(int(sys.argv[1]))
n = 0
while True:
    payload = bytes([n % 251]) * 200_000
    writer.write(Notice(Version(0, n), "k" * (n % 50), len(payload), "s", n), payload)
    n += 1
"""


@pytest.fixture
def fd() -> Iterator[int]:
    held = os.memfd_create("test-weights")
    yield held
    os.close(held)


def notice(n: int) -> Notice:
    return Notice(Version(1, n), f"key-{n}", 3, "sha", 10 * n, n, {"epsilon": 0.5})


def test_before_the_first_version_there_is_nothing(fd: int) -> None:
    reader = WeightsReader(fd)
    assert reader.version() is None
    assert reader.read() is None


def test_a_reader_sees_the_newest_version_whole(fd: int) -> None:
    writer, reader = WeightsWriter(fd), WeightsReader(fd)
    for n in range(4):
        writer.write(notice(n), bytes([n]) * 3)
        assert reader.version() == Version(1, n)
        assert reader.read() == (notice(n), bytes([n]) * 3)
    assert WeightsReader(fd).read() == (notice(3), bytes([3]) * 3)


def test_the_version_before_can_be_read_until_the_next_is_written(fd: int) -> None:
    writer, reader = WeightsWriter(fd), WeightsReader(fd)
    assert reader.read(0) is None
    for n in range(3):
        writer.write(notice(n), bytes([n]) * 3)
        for before in {n, max(0, n - 1)}:
            assert reader.version(before) == Version(1, before)
            assert reader.read(before) == (notice(before), bytes([before]) * 3)
        assert reader.version(n + 1) is None
    assert reader.version(0) is None
    assert reader.read(0) is None
    words = memoryview(bytearray(os.pread(fd, 4096, 0))).cast("q")
    at = BUFFER_WORDS_AT + ((words[NEWEST] + 1) & 1) * BUFFER_WORDS
    os.pwrite(fd, (words[NEWEST] + 1).to_bytes(8, "little"), 8 * (at + BEGIN))
    assert reader.read(1) is None, "it is being overwritten"
    assert reader.read(2) == (notice(2), bytes([2]) * 3)


def test_a_version_that_the_learner_rolled_back_from_is_not_there(fd: int) -> None:
    """Of the abandoned future only the number is that of a version to come."""
    writer, reader = WeightsWriter(fd), WeightsReader(fd)
    for version in (Version(2, 7), Version(3, 6)):
        writer.write(structs.replace(notice(version.n), version=version), b"abc")
    assert reader.version(6) == Version(3, 6)
    assert reader.version(7) is None and reader.read(7) is None


def test_a_payload_that_outgrew_the_buffer_is_refused(fd: int) -> None:
    writer, reader = WeightsWriter(fd), WeightsReader(fd)
    writer.write(notice(0), b"abc")
    with pytest.raises(ValueError, match="do not fit"):
        writer.write(notice(1), bytes(100_000))
    assert reader.version() == Version(1, 0)


def test_a_writer_that_died_in_the_middle_leaves_the_version_before(fd: int) -> None:
    writer, reader = WeightsWriter(fd), WeightsReader(fd)
    writer.write(notice(0), b"abc")
    writer.write(notice(1), b"def")
    words = reader._attached()
    assert words is not None and reader._mapped is not None
    half = memoryview(bytearray(os.pread(fd, 4096, 0))).cast("q")
    other = BUFFER_WORDS_AT + ((half[NEWEST] + 1) & 1) * BUFFER_WORDS
    os.pwrite(fd, (half[NEWEST] + 1).to_bytes(8, "little"), 8 * (other + BEGIN))
    assert reader.read() == (notice(1), b"def")
    newest = BUFFER_WORDS_AT + (half[NEWEST] & 1) * BUFFER_WORDS
    os.pwrite(fd, (99).to_bytes(8, "little"), 8 * (newest + BEGIN))
    with pytest.raises(DeadlineExceeded):
        reader.read()


def test_no_read_is_torn_while_a_process_writes_as_fast_as_it_can(fd: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", HAMMER, str(fd)], pass_fds=(fd,))
    try:
        reader, seen = WeightsReader(fd), []
        deadline = time.monotonic() + WAIT_S
        while len(set(seen)) < 40 and time.monotonic() < deadline:
            found = reader.read()
            if found is not None:
                got, payload = found
                assert payload == bytes([got.version.n % 251]) * 200_000
                assert len(got.key) == got.version.n % 50
                seen.append(got.version)
        assert seen == sorted(seen)
        assert len(set(seen)) == 40
    finally:
        writer.kill()
        writer.wait()
