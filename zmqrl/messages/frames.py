"""Frames of the bus: control messages, descriptors, columns. Checked on arrival: a wrong one is a `WireError`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from zmqrl.errors import WireError
from zmqrl.loading import lazy, np
from zmqrl.messages.bus import KINDS, Message
from zmqrl.messages.fields import MOST_EXPLAINED_BYTES, refusal
from zmqrl.types import Array, ColumnSpec, SlotRef

PROTOCOL = 3
MAX_CONTROL_BYTES = 16 << 20
MAX_DESCRIPTORS_BYTES = 1 << 20
PACKED_FROM = 65_536
"""Bytes of a column of images that may be sent as an LZ4 frame."""
PART_BYTES = 1 << 16
lz4_frame = lazy("lz4.frame")
_encode = msgspec.msgpack.Encoder().encode


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    protocol: Annotated[int, Meta(ge=PROTOCOL, le=PROTOCOL)]
    message: Message


_decode = msgspec.msgpack.Decoder(_Frame).decode


def pack(message: Message) -> bytes:
    """One control message as one frame."""
    return _encode((PROTOCOL, message))


def unpack(frame: bytes) -> Message:
    """Decode and check a frame in one pass. WireError states what is wrong with it."""
    if len(frame) > MAX_CONTROL_BYTES:
        raise WireError("size", f"a control message of {len(frame)} bytes")
    try:
        return _decode(frame).message
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refusal(frame, error) from error


def _refusal(frame: bytes, error: Exception) -> WireError:
    """Decoded once more without types: only what was refused pays for its reason, and only while it is small."""
    if len(frame) > MOST_EXPLAINED_BYTES:
        return WireError("value", f"{len(frame)} bytes: {error}")
    try:
        data = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as malformed:
        return WireError("not msgpack", str(malformed))
    if not isinstance(data, list) or len(data) < 2:
        return WireError("shape", "not [protocol, message]")
    if type(data[0]) is not int or data[0] != PROTOCOL:
        return WireError("protocol", f"version {data[0]!r:.20}, this is {PROTOCOL}")
    if len(data) != 2:
        return WireError("shape", "not [protocol, message]")
    return refusal(data[1], "kind", KINDS, error, unknown="kind")


def pack_descriptors(first: int, second: int, refs: Sequence[SlotRef]) -> bytes:
    """Two words (worker and spawn; or broker incarnation and 0), then slot and generation of each ref, as int64."""
    flat = [word for ref in refs for word in ref]
    return struct.pack(f"<{2 + len(flat)}q", first, second, *flat)


def unpack_descriptors(frame: bytes) -> tuple[int, int, list[SlotRef]]:
    """The reverse. WireError when the length is wrong."""
    if len(frame) % 16 or not 16 <= len(frame) <= MAX_DESCRIPTORS_BYTES:
        raise WireError("descriptors", f"{len(frame)} bytes")
    words = struct.unpack(f"<{len(frame) // 8}q", frame)
    return words[0], words[1], [SlotRef(*words[i : i + 2]) for i in range(2, len(words), 2)]


class PackedColumn(msgspec.Struct, frozen=True):
    """A column of images as an LZ4 frame, unpacked where it is stored."""

    name: str
    frame: memoryview

    def unpack(self, target: Array) -> None:
        """Fill `target` part by part. WireError when the frame is damaged, or holds more or less."""
        into, unpacker, at, source = target.reshape(-1), lz4_frame.LZ4FrameDecompressor(), 0, self.frame
        try:
            while not unpacker.eof and at <= into.size:
                part = unpacker.decompress(source, max_length=max(1, min(PART_BYTES, into.size - at)))
                if not part:
                    break
                into[at : at + len(part)] = np.frombuffer(part, np.uint8)[: into.size - at]
                at, source = at + len(part), memoryview(b"")
        except RuntimeError as error:
            raise WireError("column", f"{self.name}: {error}") from error
        if at != into.size or not unpacker.eof:
            raise WireError("column", f"{self.name} has not {into.size} bytes")


def may_be_packed(column: ColumnSpec) -> bool:
    """Whether a frame that is shorter than the column is an LZ4 frame of it."""
    return column.dtype == "uint8" and column.nbytes >= PACKED_FROM


def pack_column(values: Array) -> bytes:
    """The LZ4 frame of a column."""
    size = lz4_frame.BLOCKSIZE_MAX64KB
    packed: bytes = lz4_frame.compress(values, block_size=size, block_linked=False, store_size=False)
    return packed


def unpack_columns(frames: Sequence[memoryview], columns: Sequence[ColumnSpec]) -> dict[str, Array | PackedColumn]:
    """Views of the raw frames, `[T, N, ...]` each, and packed columns. WireError: their number or a size is wrong."""
    if len(frames) != len(columns):
        raise WireError("frames", f"{len(frames)} columns, not {len(columns)}")
    found: dict[str, Array | PackedColumn] = {}
    for frame, column in zip(frames, columns, strict=True):
        if frame.nbytes == column.nbytes:
            found[column.name] = np.frombuffer(frame, column.dtype).reshape(column.shape)
        elif frame.nbytes < column.nbytes and may_be_packed(column):
            found[column.name] = PackedColumn(column.name, frame)
        else:
            raise WireError("column", f"{column.name} has {frame.nbytes} bytes, not {column.nbytes}")
    return found
