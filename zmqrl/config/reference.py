"""docs/configuration.md, every key by section: `python -m zmqrl.config.reference` writes it in a checkout."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le

from zmqrl.config.codec import to_json
from zmqrl.config.kinds import OPTIONS, SECTIONS
from zmqrl.config.sections import Config

PATH = Path(__file__).parents[2] / "docs" / "configuration.md"
BOUNDS = ((Ge, "ge", ">="), (Gt, "gt", ">"), (Le, "le", "<="))
HEAD = """# Configuration

Every key of hosts.yaml, of a preset and of `--set`, with its type, default and bounds.
This page is generated from the configuration types by `python -m zmqrl.config.reference`.
`modes.single`, `modes.sync` and `modes.async` take the same sections, for one mode alone.
"""


def text(kinds: Mapping[str, Mapping[str, type[Any]]]) -> str:
    """The page. `kinds`: sections with kinds, and the config class of each kind."""
    parts = [HEAD]
    own = [field.name for field in dataclasses.fields(Config) if _section_of(Config, field.name) is None]
    parts.append(_table("General", "Keys outside of the sections.", Config, "", own))
    for field in dataclasses.fields(Config):
        section = _section_of(Config, field.name)
        if section is None:
            continue
        prefix = f"{field.name}.NAME." if field.name == "hosts" else f"{field.name}."
        parts.append(_table(field.name, inspect.getdoc(section) or "", section, prefix))
    for name, by_kind in kinds.items():
        for kind, cls in by_kind.items():
            if dataclasses.fields(cls):
                parts.append(_table(f"{name}, kind: {kind}", inspect.getdoc(cls) or "", cls, f"{name}."))
    return "\n".join(parts)


def _table(title: str, doc: str, cls: type[Any], prefix: str, names: list[str] | None = None) -> str:
    head = [f"## {title}", doc, "", "| key | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *_rows(cls, prefix, names), ""])


def _rows(cls: type[Any], prefix: str, names: list[str] | None = None) -> Iterator[str]:
    hints, meanings = typing.get_type_hints(cls, include_extras=True), field_docs(cls)
    for field in dataclasses.fields(cls):
        if (names is not None and field.name not in names) or (cls in SECTIONS.values() and field.name == OPTIONS):
            continue
        key, meaning = f"{prefix}{field.name}", " ".join(meanings.get(field.name, "").split())
        cells = [f"`{key}`", _type(hints[field.name]), _default(field), _bounds(hints[field.name]), meaning]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        inner = next((option for option in _options(hints[field.name]) if dataclasses.is_dataclass(option)), None)
        if isinstance(inner, type):
            yield from _rows(inner, f"{key}.")


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The string below each field of a dataclass, and of the dataclasses that it extends."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_docs(base)
    return found


def _own_docs(cls: type[Any]) -> dict[str, str]:
    body = ast.parse(inspect.getsource(cls)).body[0]
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
    return next((o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)), None)


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
        return f"list of {_type(args[0])}"
    if hint is type(None):
        return "null"
    if dataclasses.is_dataclass(hint) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "section"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(hint, "any")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(to_json(field.default))}`"
    if field.default_factory is dataclasses.MISSING:
        return "required"
    made = field.default_factory()
    return "below" if dataclasses.is_dataclass(made) else f"`{json.dumps(to_json(made))}`"


def _bounds(hint: Any) -> str:
    own = [
        f"{sign} {getattr(bound, name)}"
        for bound in getattr(hint, "__metadata__", ())
        for kind, name, sign in BOUNDS
        if isinstance(bound, kind)
    ]
    inner = [_bounds(arg) for arg in typing.get_args(hint) if arg is not Ellipsis and not isinstance(arg, str)]
    return ", ".join([*own, *filter(None, inner)])


def main() -> int:
    """Write the page."""
    PATH.write_text(text(import_module("zmqrl.launch.configure").kinds()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
