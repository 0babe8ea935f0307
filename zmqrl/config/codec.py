"""Frozen dataclasses to JSON data and back, without pydantic: for data that zmqrl itself wrote.

What a type needs is worked out once and kept as a function: notices pass here several times in every round of sync.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Build = Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """Dataclasses and mappings become dicts, tuples become lists; the rest is as it is."""
    kind = type(value)
    if kind in (int, float, str, bool, type(None)):
        return value
    names = _field_names(typing.cast(Hashable, kind))
    if names is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], data: Any) -> T:
    """Build `cls` from what `to_json` gave. TypeError, ValueError or KeyError when it is something else."""
    return typing.cast(T, _builder(typing.cast(Hashable, cls))(data))


@cache
def _field_names(kind: Hashable) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


@cache
def _builder(hint: Hashable) -> Build:
    """The function that builds what `hint` annotates; None stays None."""
    build = _builder_of_present(hint)
    return build if build is _as_it_is else lambda data: None if data is None else build(data)


def _builder_of_present(hint: Any) -> Build:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        structured = [a for a in args if dataclasses.is_dataclass(a)]
        return _dataclass_or_plain(_builder(typing.cast(Hashable, structured[0]))) if structured else _as_it_is
    if origin is tuple:
        return _tuple(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _builder(args[1])
        return lambda data: {key: item(value) for key, value in data.items()}
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return lambda data: hint(*data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    return _as_it_is


def _as_it_is(data: Any) -> Any:
    return data


def _dataclass_or_plain(build: Build) -> Build:
    return lambda data: build(data) if isinstance(data, Mapping) else data


def _tuple(args: tuple[Any, ...]) -> Build:
    if len(args) == 2 and args[1] is Ellipsis:
        each = _builder(args[0])
        return lambda data: tuple(each(item) for item in data)
    builders = tuple(_builder(a) for a in args)
    return lambda data: tuple(build(item) for build, item in zip(builders, data, strict=True))


def _dataclass(cls: type) -> Build:
    fields: dict[str, Build] = {name: _builder(hint) for name, hint in typing.get_type_hints(cls).items()}

    def build(data: Any) -> Any:
        return cls(**{key: fields[key](item) for key, item in data.items()})

    return build
