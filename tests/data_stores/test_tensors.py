from __future__ import annotations

import numpy as np
import pytest
from safetensors import numpy as reference

from zmqrl.data_stores import tensors
from zmqrl.errors import StoreError

ARRAYS = {
    "b": np.array([True, False]),
    "f8": np.random.default_rng(0).standard_normal((3, 5)),
    "u1": np.arange(7, dtype=np.uint8),
    "f4": np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32).T,
    "none": np.zeros((0, 3), np.int64),
    "scalar": np.array(2, np.int64),
}


def test_the_safetensors_library_reads_it() -> None:
    theirs = reference.load(tensors.dump(ARRAYS, {"x": 'quote " and ü'}))
    assert theirs.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert theirs[name].dtype == array.dtype
        assert np.array_equal(theirs[name], array)


def test_it_reads_what_the_library_writes() -> None:
    ours, metadata = tensors.parse(reference.save({k: v.copy("C") for k, v in ARRAYS.items()}, {"a": "b"}))
    assert metadata == {"a": "b"}
    for name, array in ARRAYS.items():
        assert np.array_equal(ours[name], array)


def test_arrays_are_aligned_and_read_only() -> None:
    arrays, _ = tensors.parse(tensors.dump(ARRAYS, {}))
    assert all(array.flags.aligned and not array.flags.writeable for array in arrays.values())


def test_every_flipped_byte_is_found() -> None:
    whole = tensors.dump({"a": np.arange(3)}, {"k": "v"})
    tensors.verify(whole)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        with pytest.raises(StoreError):
            tensors.verify(bytes(damaged))


@pytest.mark.parametrize("cut", [0, 3, 8, 40, -1])
def test_parts_are_refused(cut: int) -> None:
    with pytest.raises(StoreError):
        tensors.parse(tensors.dump(ARRAYS, {})[:cut])


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a":3}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}',
        b'{"a":{"dtype":"X","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
        b"\xff",
    ],
)
def test_lying_headers_are_refused(header: bytes) -> None:
    with pytest.raises(StoreError):
        tensors.parse(len(header).to_bytes(8, "little") + header + b"\0" * 8)
