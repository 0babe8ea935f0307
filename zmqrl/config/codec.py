"""Frozen dataclasses to JSON data and back, without pydantic: for data that zmqrl itself wrote."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Dataclasses and mappings become dicts, tuples become lists; the rest is as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_json(cls: type[T], data: Any) -> T:
    """Build `cls` from what `to_json` gave. TypeError or KeyError when it is something else."""
    return typing.cast(T, _build(cls, data))


def _build(hint: Any, data: Any) -> Any:
    if data is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        structured = [a for a in args if dataclasses.is_dataclass(a)]
        return _build(structured[0], data) if structured and isinstance(data, Mapping) else data
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], item) for item in data)
        return tuple(_build(a, item) for a, item in zip(args, data, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _build(args[1], item) for key, item in data.items()}
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return hint(*data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**{key: _build(_hints(hint)[key], item) for key, item in data.items()})
    return data
