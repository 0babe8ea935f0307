"""Field types that messages of several links have, and the refusal of a value outside of their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from zmqrl.config.plan import MOST_WORKERS
from zmqrl.errors import WireError
from zmqrl.types import LONGEST_NAME, Finite, Whole

MOST_EXPLAINED_BYTES = 1 << 18
"""A larger message is refused by `value` alone: without types, 16 MiB of empty lists take 1 GB."""
Index: TypeAlias = Annotated[int, Meta(ge=0, lt=MOST_WORKERS)]
"""Index of a process among those of its role."""
FileName: TypeAlias = Annotated[str, Meta(max_length=LONGEST_NAME, pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]*\Z")]
"""No path, in any encoding of file names."""
Text: TypeAlias = Annotated[str, Meta(max_length=1 << 20)]
PathText: TypeAlias = Annotated[str, Meta(max_length=1 << 20, pattern=r"\A[^\0]*\Z")]
Bytes: TypeAlias = Annotated[str, Meta(max_length=1 << 20, pattern=r"\A[^\0]*\Z")]
"""Bytes as the characters of latin-1: words and variables of a process have any encoding."""
Large: TypeAlias = Annotated[str, Meta(max_length=1 << 30)]
"""An archive as base64."""
Number: TypeAlias = Whole | Finite
"""An integer stays one."""
Port: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
Ports: TypeAlias = tuple[Port, Port, Port]


def kinds_of(types: Sequence[type[msgspec.Struct]]) -> Mapping[str, type[msgspec.Struct]]:
    """Message types by the tag that they bear on the wire."""
    return {str(kind.__struct_config__.tag): kind for kind in types}


def refusal(
    data: Any, tag_field: str, kinds: Mapping[str, type[msgspec.Struct]], error: Exception, unknown: str
) -> WireError:
    """The reason why `data`, a message without its types, is none of `kinds`; `error`: what the decoder reported.

    Returns:
        `shape`: not an object; `unknown`: no such message; `fields`: one is missing or unknown; else `value`.
    """
    if not isinstance(data, dict):
        return WireError("shape", "not an object")
    tag = data.get(tag_field)
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        return WireError(unknown, f"{tag!r:.80}")
    return refusal_of(data.keys() - {tag_field}, kind, str(tag), error)


def refusal_of(given: Set[Any], kind: type[msgspec.Struct], name: str, error: Exception) -> WireError:
    """The reason why an object with these `given` fields is not a message of this type: `fields` or `value`."""
    fields = msgspec.structs.fields(kind)
    known, required = {field.encode_name for field in fields}, {field.encode_name for field in fields if field.required}
    if not required <= given <= known:
        wrong = sorted(map(str, (given - known) | (required - given)))
        return WireError("fields", f"{name}: missing or unknown: {', '.join(wrong):.200}")
    return WireError("value", f"{name}: {error}")
