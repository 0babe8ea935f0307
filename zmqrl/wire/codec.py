"""Messages to frames and back: one msgpack header, checked against the message's schema, then raw column buffers.

Nothing from outside is trusted: every refusal is a `WireError` whose `reason` the receiver counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgpack

from zmqrl.errors import WireError
from zmqrl.wire import messages
from zmqrl.wire.messages import Message

PROTOCOL = 1
MAX_HEADER = 1 << 24
"""Bytes: a take-up carries the actions of long episodes."""
MAX_TEXT = 4096
MAX_ITEMS = 65_536

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda v: type(v) is int and -(1 << 62) < v < (1 << 62),
    "bool": lambda v: type(v) is bool,
    "str": lambda v: type(v) is str and len(v) <= MAX_TEXT,
    "Packed": lambda v: type(v) is bytes and len(v) % 8 == 0,
    "list[Any]": lambda v: type(v) is list and len(v) <= MAX_ITEMS,
    "dict[str, Any]": lambda v: type(v) is dict and len(v) <= MAX_ITEMS,
}
_KINDS: tuple[type[Any], ...] = get_args(Message)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_SCHEMA = tuple(tuple((f.name, _CHECKS[str(f.type)]) for f in dataclasses.fields(kind)) for kind in _KINDS)
_NAMES = tuple(tuple(f.name for f in dataclasses.fields(kind)) for kind in _KINDS)


def encode(message: Message) -> bytes:
    """The header frame: `[protocol, kind, field, field, ...]`."""
    kind = _NUMBER[type(message)]
    return bytes(msgpack.packb([PROTOCOL, kind, *(getattr(message, name) for name in _NAMES[kind])]))


def decode(frame: bytes | memoryview) -> Message:
    """The message of a header frame; `WireError` (size, malformed, version, kind, schema) says what is wrong."""
    if len(frame) > MAX_HEADER:
        raise WireError("size", f"a header of {len(frame)} bytes is over the limit of {MAX_HEADER}")
    try:
        fields = msgpack.unpackb(frame, raw=False, use_list=True, strict_map_key=True, max_buffer_size=MAX_HEADER)
    except (ValueError, msgpack.UnpackException, RecursionError, MemoryError) as error:
        raise WireError("malformed", f"no msgpack: {error}") from error
    if type(fields) is not list or len(fields) < 2 or type(fields[1]) is not int:
        raise WireError("malformed", "the header is no list of protocol, kind and fields")
    if fields[0] != PROTOCOL:
        raise WireError("version", f"protocol {fields[0]!r}, this is {PROTOCOL}")
    kind = fields[1]
    if not 0 <= kind < len(_KINDS):
        raise WireError("kind", f"message kind {kind} is unknown")
    schema = _SCHEMA[kind]
    if len(fields) != len(schema) + 2:
        raise WireError("schema", f"{_KINDS[kind].__name__} has {len(schema)} fields, got {len(fields) - 2}")
    for (name, check), value in zip(schema, fields[2:], strict=True):
        if not check(value):
            raise WireError("schema", f"{_KINDS[kind].__name__}.{name} cannot be {str(value)[:80]!r}")
    message: Message = _KINDS[kind](*fields[2:])
    return message


def expect(message: Message, kinds: tuple[type[Any], ...]) -> None:
    """Refuse what this socket does not take."""
    if not isinstance(message, kinds):
        raise WireError("kind", f"{type(message).__name__} does not belong on this socket")


def single_frame(frames: Sequence[Any]) -> Any:
    """The only frame of a message without buffers."""
    if len(frames) != 1:
        raise WireError("frames", f"expected one frame, got {len(frames)}")
    return frames[0]


assert all(str(f.type) in _CHECKS for kind in _KINDS for f in dataclasses.fields(kind)), messages.__name__
