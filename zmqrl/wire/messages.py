"""What travels over control and notices, and the descriptors: checked on arrival, never trusted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from zmqrl.config.codec import from_json, to_json
from zmqrl.errors import WireError
from zmqrl.types import Array, ColumnSpec, Notice, SegmentId, SegmentMeta, SlotRef, Version

PROTOCOL = 2
MAX_CONTROL_BYTES = 16 << 20
MAX_DESCRIPTORS_BYTES = 1 << 20
MOST_PARTS = 4096
Check = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_counts(width: int) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, list) and len(row) == width and all(map(_is_count, row)) for row in value
        )

    return check


def _is_notice(value: Any) -> bool:
    try:
        notice = from_json(Notice, value)
        v = notice.version
        words = (v.incarnation, v.n, notice.nbytes, notice.env_steps, notice.updates)
        return (
            all(map(_is_count, words))
            and max(v) < 1 << 38
            and isinstance(notice.key, str)
            and isinstance(notice.sha256, str)
            and all(isinstance(k, str) and isinstance(x, (int, float)) for k, x in notice.schedule.items())
        )
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 256


def _is_alive(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_count(k) and _is_count(v) for k, v in value.items())


def _is_list_of_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_part(counts: int) -> Check:
    """So many counts, then a part of an env-slot record as bytes."""

    def check(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == counts + 1
            and all(map(_is_count, value[:-1]))
            and isinstance(value[-1], bytes)
        )

    return check


def _is_orders(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(o, list) and len(o) == 4 and all(map(_is_count, o[:3])) and (o[3] is None or _is_count(o[3]))
        for o in value
    )


def _is_version_or_none(value: Any) -> bool:
    return value is None or (_is_list_of_counts(value) and len(value) == 2)


SCHEMAS: Mapping[str, Mapping[str, Check]] = {
    "worker": {
        "index": _is_count,
        "spawn": _is_count,
        "broker": _is_count,
        "serial": lambda v: v == -1 or _is_count(v),
        "remote": _is_flag,
        "leases": _is_counts(2),
        "streams": _is_counts(2),
        "stopped": _is_list_of_counts,
        "open": _is_counts(3),
    },
    "beat": {"role": _is_text, "index": _is_count, "spawn": _is_count, "progress": _is_count},
    "segment": {
        "layout": _is_count,
        "index": _is_count,
        "spawn": _is_count,
        "ref": lambda v: _is_counts(2)([v]),
        "meta": lambda v: _is_counts(6)([v]),
    },
    "goodbye": {"index": _is_count, "spawn": _is_count},
    "agent": {
        "host": _is_text,
        "alive": _is_alive,
        "ready": _is_list_of_counts,
        "given_up": _is_list_of_counts,
        "workers": _is_list_of_counts,
    },
    "welcome": {"broker": _is_count},
    "farewell": {},
    "fetch": {"version": lambda v: _is_counts(2)([v])},
    "weights": {"notice": _is_notice, "parts": lambda v: _is_count(v) and v <= MOST_PARTS},
    "learner": {"env_steps": _is_count, "updates": _is_count},
    "announce": {"notice": _is_notice, "back": lambda v: v is None or _is_list_of_counts(v)},
    "answer": {"part": _is_part(5)},
    "orders": {
        "spawn": _is_count,
        "broker": _is_count,
        "leases": _is_counts(2),
        "acked": _is_counts(3),
        "serial": _is_count,
        "orders": lambda v: v is None or _is_orders(v),
        "stop": _is_flag,
    },
    "want": {"index": _is_count, "spawn": _is_count, "records": _is_counts(3)},
    "record": {"spawn": _is_count, "parts": lambda v: isinstance(v, list) and all(map(_is_part(3), v))},
    "books": {"broker": _is_count, "requests": _is_counts(4), "known": _is_version_or_none},
    "notice": {"notice": _is_notice},
}
"""Fields of each message. All ints are below 2^62."""


@dataclass(frozen=True)
class Message:
    """A checked control message."""

    kind: str
    fields: Mapping[str, Any]


def pack(kind: str, **fields: Any) -> bytes:
    """One control message as one frame."""
    return bytes(msgpack.packb([PROTOCOL, kind, fields]))


def unpack(frame: bytes) -> Message:
    """Check a frame. WireError says what is wrong with it."""
    if len(frame) > MAX_CONTROL_BYTES:
        raise WireError("size", f"a control message of {len(frame)} bytes")
    try:
        data = msgpack.unpackb(frame, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError("not msgpack", str(error)) from error
    if not (isinstance(data, list) and len(data) == 3 and isinstance(data[2], dict)):
        raise WireError("shape", "not [protocol, kind, fields]")
    protocol, kind, fields = data
    if protocol != PROTOCOL:
        raise WireError("protocol", f"version {protocol!r}, this is {PROTOCOL}")
    schema = SCHEMAS.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise WireError("kind", f"{kind!r:.80}")
    if fields.keys() != schema.keys():
        raise WireError("fields", f"{kind}: not {sorted(schema)}")
    for name, check in schema.items():
        if not check(fields[name]):
            raise WireError("value", f"{kind}.{name}")
    return Message(kind, fields)


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


def pack_segment(layout: int, index: int, spawn: int, ref: SlotRef, meta: SegmentMeta) -> bytes:
    """The first frame of a whole segment; the columns follow as raw frames, in the layout's order."""
    words = [*meta.id, *meta.version, meta.rows]
    return pack("segment", layout=layout, index=index, spawn=spawn, ref=list(ref), meta=words)


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


def segment_meta(words: Sequence[int]) -> SegmentMeta:
    """The reverse of what `pack_segment` wrote."""
    return SegmentMeta(SegmentId(*words[:3]), Version(*words[3:5]), words[5])


@dataclass(frozen=True)
class HostWord:
    """What an agent says of its host: absolute, so a lost one is harmless."""

    alive: Mapping[int, int]
    """Worker to spawn; who is absent is dead and reaped."""
    ready: Collection[int] = ()
    """Who said that it is: its silence from then on means something."""
    given_up: Collection[int] = ()
    """Who never comes back."""
    workers: Collection[int] = ()
    """Whom the host holds."""


def pack_host_word(host: str, word: HostWord) -> bytes:
    """`agent`, which the broker always answers with one `welcome`."""
    indexes = {"ready": list(word.ready), "given_up": list(word.given_up), "workers": list(word.workers)}
    return pack("agent", host=host, alive=dict(word.alive), **indexes)


def pack_notice(notice: Notice) -> bytes:
    """What PUB carries."""
    return pack("notice", notice=to_json(notice))
