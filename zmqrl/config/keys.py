"""Every configuration key as the types have it: name, type, default, bounds and meaning."""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from msgspec import NODEFAULT
from msgspec.inspect import DataclassType, Field, StructType, type_info

from zmqrl.config.codec import is_plain, names_of, to_json
from zmqrl.config.kinds import OPTIONS, SECTIONS
from zmqrl.config.sections import Config

ALGORITHM = "algorithm"
SIGNS = {"ge": ">=", "gt": ">", "le": "<="}
"""Signs of bounds, by the attribute that has the bound in `Bounds` and in the types of `annotated_types`."""

WHAT_TRAINS = "What trains. Presets, and `train --env ID`, set keys to other values than the defaults: see `--dry-run`."


@dataclass(frozen=True)
class Key:
    """A configuration key; texts as the documentation has them."""

    name: str
    """Dotted."""
    type: str
    default: str
    """JSON, `required`, or `below` for a section whose keys follow."""
    bounds: str
    meaning: str
    is_section: bool


@dataclass(frozen=True)
class KeysOf:
    """The keys of a section, or of one kind of it."""

    title: str
    meaning: str
    keys: tuple[Key, ...]


def all_keys(kinds: Mapping[str, Mapping[str, type[Any]]]) -> Iterator[KeysOf]:
    """Every section of `Config`, then every kind with keys. `kinds`: config class by section and kind."""
    own = [name for name in names_of(Config) if _section_of(Config, name) is None]
    yield KeysOf("General", "Keys outside of the sections.", tuple(_keys(Config, "", own)))
    for name in names_of(Config):
        section = _section_of(Config, name)
        if section is not None:
            prefix = f"{name}.NAME." if name == "hosts" else f"{name}."
            yield KeysOf(name, inspect.getdoc(section) or "", tuple(_keys(section, prefix)))
    for name, by_kind in kinds.items():
        if name == ALGORITHM:
            meaning = f"{', '.join(by_kind)}, or a dotted path `module:Name`."
            default = json.dumps(Config().algorithm["kind"])
            yield KeysOf(name, WHAT_TRAINS, (Key("algorithm.kind", "text", default, "", meaning, False),))
        for kind, cls in by_kind.items():
            if names_of(cls):
                title = f"{name}, kind: {kind}"
                yield KeysOf(title, inspect.getdoc(cls) or "", tuple(_keys(cls, f"{name}.")))


def _keys(cls: type[Any], prefix: str, names: list[str] | None = None) -> Iterator[Key]:
    hints, meanings = typing.get_type_hints(cls, include_extras=True), field_docs(cls)
    for field in _fields(cls):
        if (names is not None and field.name not in names) or (cls in SECTIONS.values() and field.name == OPTIONS):
            continue
        name, meaning, hint = f"{prefix}{field.name}", " ".join(meanings.get(field.name, "").split()), hints[field.name]
        inner = next((option for option in _options(hint) if is_plain(option)), None)
        yield Key(name, _type(hint), _default(field), _bounds(hint), meaning, inner is not None)
        if isinstance(inner, type):
            yield from _keys(inner, f"{name}.")


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The string below each field of a section, and of the sections that it extends."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_plain(base):
            found |= _own_docs(cast(Hashable, base))
    return found


@cache
def _own_docs(cls: Any) -> Mapping[str, str]:
    try:
        body = ast.parse(inspect.getsource(cls)).body[0]
    except (OSError, TypeError, SyntaxError):  # a class without a file, or in the body of another one
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for item, after in zip(body.body, body.body[1:], strict=False):
        below = after.value if isinstance(after, ast.Expr) else None
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(below, ast.Constant):
            found[item.target.id] = str(below.value)
    return found


def _section_of(cls: type[Any], name: str) -> type[Any] | None:
    hint = typing.get_type_hints(cls)[name]
    options = [hint, *typing.get_args(hint)]
    return next((o for o in options if is_plain(o)), None)


def _options(hint: Any) -> list[Any]:
    """The members of a union, bounds and all taken off."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _options(args[0])
    if origin in (typing.Union, types.UnionType):
        return [option for arg in args for option in _options(arg)]
    return [hint]


def _type(hint: Any) -> str:
    return " or ".join(_name(option) for option in _options(hint))


def _name(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin is tuple:
        return f"list of {_type(args[0])}" if args[-1] is Ellipsis else f"[{', '.join(map(_type, args))}]"
    if hint is type(None):
        return "null"
    if is_plain(hint) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "section"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(hint, "any")


def _fields(cls: type[Any]) -> Sequence[Field]:
    section = type_info(cls)
    assert isinstance(section, (StructType, DataclassType))
    return section.fields


def _default(field: Field) -> str:
    if field.required:
        return "required"
    made = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return "below" if is_plain(type(made)) else json.dumps(to_json(made))


def _bounds(hint: Any) -> str:
    own = [
        f"{sign} {getattr(bound, name)}"
        for bound in getattr(hint, "__metadata__", ())
        for name, sign in SIGNS.items()
        if getattr(bound, name, None) is not None
    ]
    if typing.get_origin(hint) is tuple and hint.__args__[-1] is not Ellipsis:
        return ""  # of several types
    inner = [_bounds(arg) for arg in typing.get_args(hint) if arg is not Ellipsis and not isinstance(arg, str)]
    return ", ".join([*own, *filter(None, inner)])
