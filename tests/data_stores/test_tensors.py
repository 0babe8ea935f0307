from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as reference

from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import StoreError
from zmqrl.types import Version

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


ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    ("arrays", "metadata"),
    [
        ('"a":' + "[" * 100_000 + "]" * 100_000, ""),
        ('"a":' + ENTRY.replace("[1]", "[1e999]"), ""),
        ('"a":' + ENTRY.replace("[1]", f"[{'9' * 5000}]"), ""),
        ('"a":' + ENTRY.replace("[1]", "[9223372036854775808,0]").replace("0,4", "0,0"), ""),
        ('"a":' + ENTRY.replace("0,4", "99999999999999999999,100000000000000000003"), ""),
        ('"a":' + ENTRY.replace("0,4", "0.0,4.0"), ""),
        ('"a":' + ENTRY.replace("[1]", '["x"]'), ""),
        ('"a":' + ENTRY.replace("[1]", f"[{','.join(['1'] * 200)}]"), ""),
        ('"a":' + ENTRY.replace('"F32"', '["F32"]'), ""),
        (f'"a":{ENTRY}', ',"full":"' + "[" * 100_000 + '"'),
        (f'"a":{ENTRY}', ',"full":"[]"'),
        (f'"a":{ENTRY}', ',"full":"{\\"counters\\": 3}"'),
        (f'"a":{ENTRY}', ',"score":"much"'),
        (f'"a":{ENTRY}', ',"env_steps":"[]"'),
        (f'"a":{ENTRY}', ',"env_steps":1e999'),
        (f'"a":{ENTRY}', f',"score":1{"0" * 400}'),
    ],
)
def test_a_hostile_file_with_a_digest_that_fits_is_passed_over(arrays: str, metadata: str, tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), 3)
    store.save_full(Full(Version(0, 1), {"a": np.zeros(1)}, {"counters": {"n": 1}}), durable=False)
    version = "" if "full" in metadata else ',"full":"{\\"counters\\": {}}"'
    zeros = '"sha256":"' + "0" * 64 + '"'
    header = f'{{"__metadata__":{{{zeros},"version":"0-2"{version}{metadata}}},{arrays}}}'.encode()
    content = len(header).to_bytes(8, "little") + header + b"\0" * 4
    content = content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)
    (tmp_path / "full-0-2.safetensors").write_bytes(content)
    with pytest.raises(StoreError):
        tensors.verify(content)
    found = DirectoryStore(str(tmp_path), 3).newest_full()
    assert found is not None and found.version == Version(0, 1)
