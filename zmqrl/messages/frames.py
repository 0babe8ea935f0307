"""Frames of the bus: control messages, descriptors, columns. Checked on arrival: a wrong one is a `WireError`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from zmqrl.errors import WireError
from zmqrl.loading import np
from zmqrl.messages.bus import KINDS, Message
from zmqrl.messages.fields import MOST_EXPLAINED_BYTES, refusal
from zmqrl.types import Array, ColumnSpec, SlotRef

PROTOCOL = 3
MAX_CONTROL_BYTES = 16 << 20
MAX_DESCRIPTORS_BYTES = 1 << 20
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


def unpack_columns(frames: Sequence[memoryview], columns: Sequence[ColumnSpec]) -> dict[str, Array]:
    """Views of the raw frames, `[T, N, ...]` each. WireError when their number or a size is wrong."""
    if len(frames) != len(columns):
        raise WireError("frames", f"{len(frames)} columns, not {len(columns)}")
    found = {}
    for frame, column in zip(frames, columns, strict=True):
        if frame.nbytes != column.nbytes:
            raise WireError("column", f"{column.name} has {frame.nbytes} bytes, not {column.nbytes}")
        found[column.name] = np.frombuffer(frame, column.dtype).reshape(column.shape)
    return found
