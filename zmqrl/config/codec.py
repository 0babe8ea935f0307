"""Dataclasses and Structs to JSON data and back, without pydantic: for data that zmqrl itself wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec import structs

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Dataclasses, Structs and mappings become dicts, tuples become lists; the rest is as it is.

    `msgspec.to_builtins` leaves out fields of a dataclass that `msgspec.convert` filled with defaults.
    """
    names = _names(cast(Hashable, type(value)))
    if names is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(inner) for inner in value]
    return value


def from_json(cls: type[T], data: Any) -> T:
    """Build `cls` from what `to_json` gave. ValueError when it is something else, or has unknown fields."""
    value = msgspec.convert(data, cls, str_keys=True)
    _refuse_unknown(data, to_json(value), "$")
    return value


def object_of(content: bytes) -> dict[str, Any]:
    """The JSON object that a file holds. ValueError states what is wrong with `content`."""
    if not content:
        raise ValueError("the file is empty")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    return data


def by_dotted_keys(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested mappings, each with its dotted key; an empty mapping is a value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from by_dotted_keys(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, value


def is_plain(kind: Any) -> bool:
    """Whether `kind` is a Struct or a dataclass: the class, not a value."""
    return isinstance(kind, type) and _names(cast(Hashable, kind)) is not None


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a Struct or a dataclass, in order."""
    names = _names(cast(Hashable, kind))
    assert names is not None, kind
    return names


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


if TYPE_CHECKING:
    from dataclasses import replace as replace  # mypy checks the changes, also of Structs
else:

    def replace(value: T, **changes: Any) -> T:
        """A copy of a Struct or a dataclass with other values in the fields that `changes` names."""
        if isinstance(value, msgspec.Struct):
            return structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)


def _refuse_unknown(data: Any, known: Any, at: str) -> None:
    """Refuse fields of `data` that are not in `known`, which was built: msgspec ignores them for dataclasses."""
    if isinstance(data, Mapping) and isinstance(known, Mapping):
        for key, inner in data.items():
            if str(key) not in known:
                raise ValueError(f"unknown field {key!r} - at `{at}`")
            _refuse_unknown(inner, known[str(key)], f"{at}.{key}")
    elif isinstance(data, (list, tuple)) and isinstance(known, list):
        for index, (inner, same) in enumerate(zip(data, known, strict=True)):
            _refuse_unknown(inner, same, f"{at}[{index}]")
