"""Frozen sections from a tree of values with sources; the first fault, or all unknown keys, become a message."""

from __future__ import annotations

import json
import shlex
import types
import typing
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from zmqrl.config.codec import is_plain, names_of
from zmqrl.config.foreign.settings import data_of, library_of
from zmqrl.config.kinds import OPTIONS, SECTIONS
from zmqrl.config.known_keys import KnownKeys
from zmqrl.config.overrides import RESET
from zmqrl.config.value_fixes import fix_of, is_finite, nearest
from zmqrl.config.webhook import without_paths
from zmqrl.config.yaml_source import Branch, Leaf, Node, shown
from zmqrl.errors import ConfigError, Key

T = TypeVar("T")
SECTION_EXPECTED = frozenset({"dataclass_type", "dataclass_exact_type"})
LISTS = frozenset({"tuple_type", "list_type"})
"""Types of errors of pydantic."""
WHOLE = ("configuration",)
"""Key in errors of the whole configuration."""
PASSWORDS = ("password", "passwd", "pass", "passphrase", "pwd", "secret", "ssh_pass", "ansible_password")


def validated(cls: type[T], tree: Branch, prefix: Key = (), others: Sequence[str] = ()) -> T:
    """The section `tree`, checked.

    `prefix`: the section's path in the whole configuration. `others`: further keys of the section, which are not in
    `tree`.

    Raises:
        ConfigError: source, dotted key, value, what is wrong, and the nearest valid name.
    """
    if unknown := list(unknown_keys(cls, tree, prefix, others)):
        raise joined(unknown)
    data = _plain(cls, tree, prefix)
    try:
        # JSON input is the strict form that still takes mappings for dataclasses, lists for tuples, ints for floats.
        valid: T = _adapter(cast(Hashable, cls)).validate_json(json.dumps(data), strict=True)
        return valid
    except ValidationError as error:
        _refuse(cls, tree, prefix, error.errors(include_url=False))
    except ValueError as error:  # what json cannot write
        raise ConfigError(str(error), key=prefix or WHOLE, source=str(tree.source)) from error


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    """Built once for each class: that takes longer than a validation."""
    return TypeAdapter(cls)


class UnknownKey(ConfigError):
    """A key that does not exist."""

    def __init__(self, node: Node, path: Key, known: list[str]) -> None:
        self._node, self._path, self._known = node, path, known
        what = f"unknown key (value {_shown(path, node.value)})" if isinstance(node, Leaf) else "unknown key"
        if self._is_password():  # whatever its value is, it is not repeated
            what = "passwords are not supported"
        super().__init__(what, key=path, fix=self._hint(KnownKeys(())), source=str(node.source))

    @property
    def place(self) -> tuple[str, int]:
        """File and line, or a flag."""
        return self._node.source.name, self._node.source.line or 0

    def among(self, keys: KnownKeys) -> ConfigError:
        """The error with the key of the whole configuration that was meant."""
        return self.replaced(fix=self._hint(keys))

    def _is_password(self) -> bool:
        return self._path[-1].lower() in PASSWORDS

    def _hint(self, keys: KnownKeys) -> str:
        node, name = self._node, self._path[-1]
        if self._is_password():
            return "use SSH keys: `ssh-copy-id USER@HOST`, then an agent (ssh-add) or hosts.NAME.identity"
        if ":" in name and isinstance(node, Leaf) and node.value in (None, RESET):
            return f"write a space after the colon: {name.replace(':', ': ', 1)}"
        if (
            len(self._path) == 1
            and isinstance(node, Branch)
            and (library := library_of({name: data_of(node)})) is not None
        ):
            entry = "" if name == "behaviors" else f" {shlex.quote(name)}"
            file = shlex.quote(self._node.source.name)
            return f"this is of {library}: `zmqrl import {file}{entry}` writes a preset of it"
        return keys.hint(self._path, node.children if isinstance(node, Branch) else (), self._known)


def unknown_keys(hint: Any, node: Node, path: Key = (), others: Sequence[str] = ()) -> Iterator[UnknownKey]:
    """The keys of `node` that its type lacks, see `validated`."""
    section = _section(hint)
    for key, child in node.children.items() if isinstance(node, Branch) else ():
        if is_plain(section) and key not in names_of(section):
            yield UnknownKey(child, (*path, key), [*others, *names_of(section)])
        else:
            yield from unknown_keys(_field_type(hint, key), child, (*path, key))


def joined(errors: Sequence[ConfigError]) -> ConfigError:
    """The first of `errors`, with a line for each further one."""
    first, *rest = errors
    return first.replaced(others=tuple(error.key for error in rest), more=tuple(map(str, rest))) if rest else first


def _shown(path: Key, value: Any) -> str:
    """A URL at the top level is that of `webhook`, a secret, perhaps under a misspelt name."""
    return without_paths(shown(value)) if len(path) == 1 else shown(value)


def _plain(hint: Any, node: Node, path: Key) -> Any:
    """JSON data of a node. A key that is reset is left out; a section left empty is an empty section."""
    if isinstance(node, Branch):
        data = {}
        for key, child in node.children.items():
            inner = _field_type(hint, key)
            if isinstance(child, Leaf) and child.value is RESET and not _takes_none(inner):
                continue
            data[key] = _plain(inner, child, (*path, key))
        return data
    value = None if node.value is RESET else node.value
    if value is None and _section(hint) is not None and not _takes_none(hint):
        return {}
    if not is_finite(value):
        raise ConfigError("a number must be finite", key=path, value=shown(value), source=str(node.source))
    return value


def _section(hint: Any) -> Any:
    """The class of a section or the mapping in a type, if there is one."""
    for option in _options(hint):
        if is_plain(option) or _is_mapping(option):
            return option
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _options(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(option for arg in typing.get_args(hint) for option in _options(arg))
    return (hint,)


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _takes_none(hint: Any) -> bool:
    return hint is Any or type(None) in _options(hint)


@cache
def _hints(section: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(section, include_extras=True)


def _field_type(hint: Any, key: str) -> Any:
    section = _section(hint)
    if is_plain(section):
        return _hints(cast(Hashable, section)).get(key, Any)
    return typing.get_args(section)[1] if section is not None else Any


def _refuse(cls: Any, tree: Branch, prefix: Key, errors: list[ErrorDetails]) -> NoReturn:
    errors = _of_the_section(cls, tree, errors)
    path, node, unused = _place(tree, errors[0]["loc"])
    full = (*prefix, *path)
    is_list = isinstance(node, Leaf) and isinstance(node.value, list)
    if errors[0]["type"] == "missing" and not is_list:
        missing = (*full, *(str(part) for part in unused[-1:]))
        raise ConfigError("required key is missing", key=missing, source=str(node.source))
    same = [error for error in errors if _place(tree, error["loc"])[0] == path]
    if isinstance(node, Branch):
        what = _message(errors[:1]) if errors[0]["type"] == "value_error" else f"{_message(same)}, not a section"
        raise ConfigError(what, key=full or WHOLE, source=str(node.source))
    item = ""
    index = next((part for part in unused if isinstance(part, int)), None)
    if is_list and index is not None:
        end = len(errors[0]["loc"]) - len(unused) + unused.index(index) + 1
        same = [error for error in same if error["loc"][:end] == errors[0]["loc"][:end]]
        item = f"item {index + 1} ({shown(node.value[index])}) "
    constant = [error for error in same if error["type"] not in SECTION_EXPECTED]
    what = _message(constant) if constant else "must be"
    fix = fix_of(_hint_at(cls, path), full[-1], node.value) or nearest(node.value, constant)
    if len(constant) < len(same):
        keys = _keys_at(cls, path)
        what += f"{', or' if constant else ''} a mapping with the keys {', '.join(keys)}"
        fix = next((f"did you mean {'.'.join(full)}.{key}?" for key in ("id", "kind") if key in keys), fix)
    value = _shown(full, node.value)
    raise ConfigError(f"{item}{what}", key=full, value=value, fix=fix, source=str(node.source))


def _place(tree: Branch, loc: tuple[int | str, ...]) -> tuple[Key, Node, tuple[int | str, ...]]:
    """The deepest node that `loc` names; pydantic has names of union members in it, and list indexes behind it."""
    node: Node = tree
    path: list[str] = []
    for depth, part in enumerate(loc):
        children = node.children if isinstance(node, Branch) else {}
        if str(part) in children:
            node = children[str(part)]
            path.append(str(part))
        elif depth + 1 == len(loc) or str(loc[depth + 1]) not in children:
            return tuple(path), node, loc[depth:]
    return tuple(path), node, ()


def _message(errors: list[ErrorDetails]) -> str:
    raised = [str(error["ctx"]["error"]) for error in errors if error["type"] == "value_error"]
    if raised:  # by a `__post_init__`
        return raised[0]
    texts: list[str] = []
    for error in errors:
        text = error["msg"].removeprefix("Input ").removeprefix("should ")
        if error["type"] in LISTS:
            text = "be a list"
        elif error["type"] == "missing":
            text = "have more items"
        elif error["type"] == "bool_type":
            text = "be true or false"
        elif text == "be an object":
            text = "be a mapping (key: value)"
        texts.append(text if text not in texts else "")
    first, *others = (text for text in texts if text)
    return "must " + ", or ".join([first, *(text.removeprefix("be ") for text in others)])


def _of_the_section(cls: Any, tree: Branch, errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Where a constant, a section or a list may be given: the errors in what is, of a section under its class."""
    path, node, _ = _place(tree, errors[0]["loc"])
    if isinstance(node, Leaf) and isinstance(node.value, list):
        inner = [e for e in errors if e["type"] == "value_error" or any(isinstance(part, int) for part in e["loc"])]
        return inner or errors
    section = _section(_hint_at(cls, path))
    if not isinstance(node, Branch) or not is_plain(section):
        return errors
    below = (*path, getattr(section, "__name__", ""))
    return [error for error in errors if error["loc"][: len(below)] == below] or errors


def _hint_at(cls: Any, path: Key) -> Any:
    hint: Any = cls
    for key in path:
        hint = _field_type(hint, key)
    return hint


def _keys_at(cls: Any, path: Key) -> list[str]:
    section = _section(_hint_at(cls, path))
    keys = names_of(section) if is_plain(section) else ()
    return [key for key in keys if section not in SECTIONS.values() or key != OPTIONS]
