"""YAML with the place of every key, so that an error can name file and line; stricter than PyYAML in what it takes.

Numbers may be written `1e-3` and `100_000`; only `true` and `false` are booleans (`off` is a string: `curve: off`);
a duplicate key, a tag such as `!!python/...`, and a document that nests or repeats without end are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, Union

import yaml

from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError, Key

MOST_NODES = 20_000
MOST_DIGITS = 300
_PREFIX = "tag:yaml.org,2002:"
_TAGS = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))
AT_THEIR_BEGIN = ("found unexpected end of stream", "could not find expected ':'")
"""Problems of PyYAML that the line of the context shows."""
_PROBLEMS = (
    (r"'\\t'", "the line is indented with a tab; use spaces"),
    ("'<stream end>'", "the text ends before a list or mapping is closed"),
    ("found unexpected end of stream", "the quotation mark that begins here has no second one"),
    (
        "mapping values are not allowed here",
        "unexpected ':'; check the indentation, and that the line before has a space after its ':'",
    ),
    ("found character '(.)' that cannot start any token", r"the text begins with '\1'; put it in quotes"),
    ("while scanning an alias|found undefined alias", "the text begins with '*'; put it in quotes"),
    ("could not find expected ':'", "the line lacks a ':' with a blank after it"),
    (
        "expected <block end>.*'<block mapping start>'",
        "unexpected indentation; all keys of a section begin in the same column",
    ),
    ("expected .*'<scalar>'", "unexpected text after a value; put the whole value in quotes"),
    (r"while parsing a block collection.*'\?'", "a key in a list; check the indentation"),
    (r"expected <block end>.*found (.*)", r"unexpected \1; check the indentation and the brackets"),
    ("sequence entries are not allowed here", "unexpected '- '; write each item of a list on its own line"),
    ("found another document", "a second document begins here; remove the line"),
)
"""What PyYAML reports, and the message for it."""
_FLOAT = r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan"


@dataclass(frozen=True)
class Source:
    """Where a value was written: a file and a line, or a flag such as `--set`."""

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}"


@dataclass(frozen=True)
class Leaf:
    """A value that is replaced whole: a scalar or a list."""

    value: Any
    source: Source


@dataclass(frozen=True)
class Branch:
    """A mapping; its keys are merged one by one."""

    source: Source
    children: Mapping[str, Node] = field(default_factory=dict)
    is_emptied: bool = False
    """Whether the mapping was written as `{}`: nothing of the layers below remains in it."""

    def at(self, path: tuple[str, ...]) -> Node | None:
        """The node at `path`, or None."""
        node: Node | None = self
        for key in path:
            node = node.children.get(key) if isinstance(node, Branch) else None
        return node

    def text(self, *path: str) -> str | None:
        """The text at `path`; None where there is another value, or nothing."""
        node = self.at(path)
        return node.value if isinstance(node, Leaf) and isinstance(node.value, str) else None

    def nodes(self, prefix: Key = ()) -> Iterator[tuple[Key, Node]]:
        """Every node below this one by its key."""
        for name, child in self.children.items():
            yield (*prefix, name), child
            if isinstance(child, Branch):
                yield from child.nodes((*prefix, name))


Node: TypeAlias = Union[Leaf, Branch]  # noqa: UP007  # evaluated when the module is imported


class _Loader(yaml.SafeLoader):
    """Composes nodes only; nothing is constructed by it."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's way: filled below


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9][0-9_]*", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
):
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), _first)


def read_text(path: Path) -> str:
    """The text of a file of the user. ConfigError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError("file not found", source=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=str(path)) from error
    except ValueError as error:
        raise ConfigError("the file is not UTF-8 text", source=str(path)) from error


def read_file(path: Path, name: str | None = None, text: str | None = None) -> Branch:
    """The mapping that a YAML file holds. ConfigError names file, line and what is wrong; with `name` this name.

    `text`: of the file, where it has been read.
    """
    node = parse(read_text(path) if text is None else text, name or str(path), lines=name is None)
    if isinstance(node, Branch):
        return node
    if node.value is None:
        return Branch(node.source)
    raise ConfigError(f"expected a mapping `section: ...`, found {shown(node.value)}", key=(), source=str(node.source))


def parse(text: str, name: str, *, lines: bool = False, merges: bool = False) -> Node:
    """One YAML document. With `lines` each node's source names its line of `name`; with `merges` it may have `<<`."""
    try:
        root = yaml.compose(text, _Loader)
        return (
            _Reader(name, lines, merges).read(root)
            if root is not None
            else Leaf(None, Source(name, 1 if lines else None))
        )
    except yaml.MarkedYAMLError as error:
        is_open = _is_open(error) or error.problem in AT_THEIR_BEGIN
        mark = error.context_mark if is_open else error.problem_mark or error.context_mark
        where = Source(name, mark.line + 1 if lines and mark is not None else None)
        raise ConfigError(f"invalid YAML: {_problem(error, text)}", key=(), source=str(where)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"invalid YAML: {' '.join(str(error).split())}", key=(), source=name) from error
    except RecursionError as error:
        raise ConfigError("nested too deeply", source=name) from error


def shown(value: Any) -> str:
    """A value for a message, cut to one short line."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_open(error: yaml.MarkedYAMLError) -> bool:
    """Whether a bracket is not closed where it should be; the mark of the context is that of the bracket."""
    flow = str(error.context).startswith("while parsing a flow")
    return flow and error.context_mark is not None and "expected ',' or" in str(error.problem)


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    if _is_open(error) and error.context_mark is not None and error.problem_mark is not None:
        if "mapping" in str(error.context):
            lines = text.splitlines()[error.context_mark.line : error.problem_mark.line + 1]
            name = "; quote names such as 'node[01:02]'" if "[" in "".join(lines) else ""
            return f"the mapping that begins here has no '}}', or lacks a comma{name}"
        return "the list that begins here has no ']', or lacks a comma"
    reported = ", ".join(part for part in (error.context, error.problem) if part)
    found = ((re.search(pattern, reported), message) for pattern, message in _PROBLEMS)
    return next((match.expand(message) for match, message in found if match is not None), reported)


def _number(kind: str, text: str) -> int | float:
    if len(text) > MOST_DIGITS:
        raise ValueError("too many digits")
    if kind == "int":
        return int(text)
    number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    whole = "e" in text and number.is_integer() and abs(number) < 2**53
    return int(number) if whole else number  # 1e6 env steps are a count


class _Reader:
    def __init__(self, name: str, lines: bool, merges: bool) -> None:
        self._name, self._lines, self._merges = name, lines, merges
        self._count = 0
        self._open: list[int] = []

    def read(self, node: yaml.Node) -> Node:
        source = self._source(node)
        if not isinstance(node, yaml.MappingNode):
            return Leaf(self._value(node), source)
        self._enter(node)
        children: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key, where = self._key(key_node), self._source(key_node)
            if key in children:
                raise ConfigError(f"duplicate key {key!r} (first at {children[key].source})", source=str(where))
            child = self.read(value_node)
            # A key's line is the one to look at, not its value's.
            children[key] = Leaf(child.value, where) if isinstance(child, Leaf) else replace(child, source=where)
        self._open.pop()
        return Branch(source, children, not children)

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            self._check(node)
            return self._scalar(node)
        if isinstance(node, yaml.MappingNode):
            return _plain(self.read(node))
        self._enter(node)
        items = [self._value(item) for item in node.value]
        self._open.pop()
        return items

    def _enter(self, node: yaml.Node) -> None:
        self._check(node)
        if id(node) in self._open:
            raise self._refused(node, "the value contains itself")
        self._open.append(id(node))

    def _check(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MOST_NODES:
            raise self._refused(node, f"more than {MOST_NODES} values")
        if node.tag not in _TAGS:
            raise self._refused(node, f"the tag {node.tag!r} is not supported")

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._refused(node, "a key must be a string, not a list or a mapping")
        if node.value == "<<" and node.style is None and not self._merges:
            fix = "write the keys themselves; keys that hosts share stand in `defaults`"
            raise self._refused(node, f"merge keys (`<<: *name`) are not supported: {fix}")
        before, brace, _ = str(node.value).partition("{")
        if brace and before and node.style is None:
            raise self._refused(node, f"a colon is missing: write `{before.rstrip()}: {{`")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(_PREFIX), str(node.value)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if "\0" in text:
            raise self._refused(node, f"{shown(text)} contains a null character, which no path or command can have")
        if kind not in ("int", "float"):
            return text
        try:
            return _number(kind, text.replace("_", "").lower())
        except ValueError as error:
            raise self._refused(node, f"{shown(text)} is not a number: {error}") from error

    def _refused(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(what, key=(), source=str(self._source(node)))

    def _source(self, node: yaml.Node) -> Source:
        return Source(self._name, node.start_mark.line + 1 if self._lines else None)


def _plain(node: Node) -> Any:
    if isinstance(node, Leaf):
        return node.value
    return {key: _plain(child) for key, child in node.children.items()}
