"""Columns of images travel as LZ4 frames; what is unpacked never becomes longer than its column."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.raising import raises
from zmqrl.bus_ends.remote_sink import UNPACKED_SEGMENTS, ColumnPacker
from zmqrl.errors import WireError
from zmqrl.messages.frames import PACKED_FROM, PackedColumn, may_be_packed, pack_column, unpack_columns
from zmqrl.types import Array, ColumnSpec

IMAGES = ColumnSpec("obs", "uint8", (5, 2, 96, 96))
NOISE = np.random.default_rng(1).integers(0, 256, IMAGES.shape, np.uint8)
FLAT = np.repeat(NOISE[..., :1], 96, axis=-1)
OTHERS = (ColumnSpec("obs", "float32", (5, 2, 96, 96)), ColumnSpec("obs", "uint8", (PACKED_FROM - 1,)))


def unpacked(frame: bytes) -> Array:
    (column,) = unpack_columns([memoryview(frame)], (IMAGES,)).values()
    assert isinstance(column, PackedColumn)
    target = np.full((2, *IMAGES.shape), 7, np.uint8)
    column.unpack(target[0])
    assert (target[1] == 7).all()
    return target[0]


def test_a_packed_column_is_short_and_brings_back_its_bits() -> None:
    assert len(pack_column(FLAT)) < IMAGES.nbytes / 20
    for values in (FLAT, NOISE // 128):
        assert np.array_equal(unpacked(pack_column(values)), values)


def test_a_frame_that_holds_another_number_of_bytes_is_refused() -> None:
    for nbytes in (1, IMAGES.nbytes - 1, IMAGES.nbytes + 1, 200 * IMAGES.nbytes):
        packed = pack_column(np.zeros(nbytes, np.uint8))
        tracemalloc.start()
        try:
            with raises(WireError, reason="column"):
                unpacked(packed)
            assert tracemalloc.get_traced_memory()[1] < 5 * IMAGES.nbytes
        finally:
            tracemalloc.stop()


def test_a_frame_that_is_cut_is_refused() -> None:
    packed = pack_column(NOISE // 128)
    for nbytes in (0, 4, 20, len(packed) // 2, len(packed) - 1):
        with raises(WireError, reason="column"):
            unpacked(packed[:nbytes])


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_shorter_frame_is_refused(noise: bytes, at: int) -> None:
    for frame in (noise, pack_column(FLAT)[:at] + noise):
        with raises(WireError, reason="column"):
            unpacked(frame)


@pytest.mark.parametrize("column", OTHERS, ids=["float32", "small"])
def test_other_columns_are_never_packed(column: ColumnSpec) -> None:
    assert not may_be_packed(column)
    values = np.zeros(column.shape, column.dtype)
    assert ColumnPacker().frame(column, values) is values
    with raises(WireError, reason="column"):
        unpack_columns([memoryview(pack_column(values))], (column,))


def test_a_column_that_is_not_halved_is_sent_as_it_is_and_tried_again_later() -> None:
    packer = ColumnPacker()
    assert packer.frame(IMAGES, NOISE) is NOISE
    sent = [packer.frame(IMAGES, FLAT) for _ in range(UNPACKED_SEGMENTS + 1)]
    assert all(values is FLAT for values in sent[:-1])
    assert sent[-1] == pack_column(FLAT)
    assert packer.frame(IMAGES, FLAT) == pack_column(FLAT)
