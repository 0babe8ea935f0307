"""Named arrays as safetensors bytes and back, with numpy alone, and an embedded digest to verify a file.

Format: 8 bytes little-endian length of the header, the JSON header, the arrays' raw bytes
(https://github.com/huggingface/safetensors). Nothing is executed on reading.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from mmap import mmap

from zmqrl.errors import StoreError
from zmqrl.loading import np
from zmqrl.types import Array

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_MAX_HEADER = 100_000_000
PIECE_BYTES = 1 << 20
_ZEROS = "0" * 64
_DIGEST_KEY = "sha256"
_MARK = f'"{_DIGEST_KEY}":"'.encode()


@dataclass(frozen=True)
class Rows:
    """Rows of a larger array, one after the other: written one by one, without a copy of them all."""

    array: Array
    """`[n, ...]`; each row is C-contiguous."""
    index: Sequence[int]

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of the elements."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """`[k, ...]`, k rows."""
        return len(self.index), *self.array.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows together."""
        return self.dtype.itemsize * math.prod(self.shape)

    def copied(self) -> Array:
        """The rows side by side, in their own memory."""
        rows: Array = self.array[np.asarray(self.index, np.int64)]
        return rows


def dump(arrays: Mapping[str, Array | Rows], metadata: Mapping[str, str]) -> bytes:
    """Whole file as bytes. Arrays are ordered by item size so that each is aligned when read in place."""
    ordered, head = _head(arrays, metadata)
    content = bytearray().join([head, *(piece for array in ordered for piece in _contents(array))])
    at = _digest_at(head)
    content[at : at + len(_ZEROS)] = hashlib.sha256(content).hexdigest().encode()
    return bytes(content)


def pieces(arrays: Mapping[str, Array | Rows], metadata: Mapping[str, str]) -> Iterator[tuple[int, bytes | memoryview]]:
    """What `dump` gives as (offset, bytes), in the order of writing; the digest is last, so a part never verifies.

    Alongside the arrays it needs `PIECE_BYTES` of memory. Arrays may be read until the last piece was taken.
    """
    if sum(array.nbytes for array in arrays.values()) <= PIECE_BYTES:
        yield 0, dump(arrays, metadata)
        return
    ordered, head = _head(arrays, metadata)
    contents = (content.cast("B") for array in ordered for content in _contents(array))
    digest, offset = hashlib.sha256(), 0
    for piece in _batches(chain([head], contents)):
        digest.update(piece)
        yield offset, piece
        offset += len(piece)
    yield _digest_at(head), digest.hexdigest().encode()


def _head(arrays: Mapping[str, Array | Rows], metadata: Mapping[str, str]) -> tuple[list[Array | Rows], bytes]:
    """The arrays in the order of the file, and all that comes before them, with zeros in the place of the digest."""
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    entries = [f'"__metadata__":{json.dumps({**metadata, _DIGEST_KEY: _ZEROS}, separators=(",", ":"))}']
    offset = 0
    for name, array in ordered:
        entries.append(_entry(name, array.dtype, array.shape, offset))
        offset += array.nbytes
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    return [array for _, array in ordered], len(text).to_bytes(8, "little") + text


def _digest_at(head: bytes) -> int:
    return head.index(_MARK) + len(_MARK)


def _contents(array: Array | Rows) -> Iterator[memoryview]:
    """Views of the raw bytes in C order, shaped as the array."""
    for part in (array.array[i] for i in array.index) if isinstance(array, Rows) else (array,):
        if part.nbytes:
            yield part.data if part.flags.c_contiguous else np.ascontiguousarray(part).data


def _batches(contents: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of about `PIECE_BYTES`; large ones go through without a copy."""
    batch: list[bytes | memoryview] = []
    size = 0
    for content in contents:
        if len(content) >= PIECE_BYTES:
            yield b"".join(batch)
            yield content
            batch, size = [], 0
            continue
        batch.append(content)
        size += len(content)
        if size >= PIECE_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)


@cache
def _by_dtype() -> Mapping[np.dtype[np.generic], str]:
    """Not at import: a process that only sends weights on does not import numpy."""
    return {np.dtype(name): short for name, short in _NAMES.items()}


@cache
def _dtypes() -> Mapping[str, np.dtype[np.generic]]:
    return {short: dtype for dtype, short in _by_dtype().items()}


@lru_cache(maxsize=4096)
def _entry(name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], offset: int) -> str:
    """An array's line in the header: the same in every version of a run."""
    nbytes = dtype.itemsize * math.prod(shape)
    place = {"dtype": _by_dtype()[dtype], "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
    return f"{json.dumps(name)}:{json.dumps(place, separators=(',', ':'))}"


def parse(content: bytes | mmap) -> tuple[dict[str, Array], dict[str, str]]:
    """Read-only arrays that view `content`, and the metadata. StoreError when it is not a whole safetensors file."""
    header, start = _header(content)
    metadata = header.pop("__metadata__", {})
    try:
        arrays = {name: _view(content, start, entry) for name, entry in header.items()}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"truncated or invalid safetensors file ({len(content)} bytes): {error}") from error
    if not isinstance(metadata, dict):
        raise StoreError("not a safetensors file: __metadata__ is not a mapping")
    return arrays, {str(key): str(value) for key, value in metadata.items() if key != _DIGEST_KEY}


def verify(content: bytes | mmap) -> dict[str, object]:
    """The metadata. StoreError unless `content` was written by `dump` and not a byte of it has changed."""
    header, start = _header(content)
    metadata = header.get("__metadata__")
    stated = metadata.get(_DIGEST_KEY) if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(stated, str) or len(stated) != len(_ZEROS):
        raise StoreError("the file has no digest")
    head = content[:start].replace(_MARK + stated.encode(), _MARK + _ZEROS.encode(), 1)
    digest = hashlib.sha256(head)
    digest.update(memoryview(content)[start:])
    if digest.hexdigest() != stated:
        raise StoreError(f"the content does not match its digest {stated[:12]}")
    parse(content)  # every writer can make a digest that fits
    try:
        int(metadata.get("env_steps", 0)), float(metadata.get("score", 0))
        dict(json.loads(metadata.get("full", "{}")).get("counters", {}))
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"the metadata is not of a checkpoint: {error}") from error
    return metadata


def _header(content: bytes | mmap) -> tuple[dict[str, object], int]:
    if not content:
        raise StoreError("the file is empty")
    length = int.from_bytes(content[:8], "little")
    if content[8:9] != b"{":
        raise StoreError("not a safetensors file")
    if length > min(_MAX_HEADER, len(content) - 8):
        raise StoreError(f"truncated or invalid safetensors file: {len(content)} bytes, header of {length}")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not a safetensors file: the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise StoreError("not a safetensors file: the header is not a mapping")
    return header, 8 + length


def _view(content: bytes | mmap, start: int, entry: object) -> Array:
    if not isinstance(entry, dict):
        raise TypeError(f"an array's entry is {entry!r}")
    dtype, shape = _dtypes()[entry["dtype"]], tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    count = math.prod(shape)
    if begin < 0 or any(size < 0 for size in shape) or end - begin != count * dtype.itemsize:
        raise ValueError(f"{shape} of {dtype} does not fill bytes {begin} to {end}")
    return np.frombuffer(content, dtype, count, start + begin).reshape(shape)
