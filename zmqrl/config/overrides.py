"""Layers of configuration: what flags and Python say, paths in them, and how a later layer goes over an earlier one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.kinds import RENAMED, SECTIONS, common_keys
from zmqrl.config.paths import expanded
from zmqrl.config.sections import CodeSection
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source, parse
from zmqrl.errors import ConfigError

SET = Source("--set")
SYNC = ("code", "sync")
PATHS = SYNC, ("replay", "load")
_log = logging.getLogger(__name__)


class _Reset:
    """Messages show it as it is written."""

    def __repr__(self) -> str:
        return "null"


RESET = _Reset()
"""The value of a key that is reset to its default."""


def from_flags(pairs: Sequence[str]) -> list[Branch]:
    """`--set key=value` in the order given; keys are dotted, values are YAML, null resets."""
    return [_from_flag(pair) for pair in pairs]


def from_mapping(values: Mapping[str, Any], source: Source) -> list[Branch]:
    """Python overrides: dotted keys, and nested mappings where one likes; None resets."""
    return [_nest(_parts(key, source), _from_value(value, source), source) for key, value in values.items()]


def from_stored(data: Mapping[str, Any], source: Source) -> Branch:
    """A resolved configuration as the lowest layer: null is a value there."""
    return Branch(source, {key: _stored(value, source) for key, value in data.items()})


def merge_all(layers: Iterable[Branch]) -> Branch:
    """The later layer wins, key by key; `{}` as the value of a key of a section empties the mapping.

    A section or a host that is written as `{}` changes nothing: its keys have the values of lower layers.
    """
    merged = Branch(Source("defaults"))
    for layer in map(_with_current_names, layers):
        merged = _merge(_forget(merged, layer), layer)
    return merged


def as_one(layers: Iterable[Branch], source: Source) -> Branch:
    """Flags as one layer: `--set env.id=... --set env.kwargs=...` means the same in any order."""
    merged = Branch(source)
    for layer in layers:
        merged = _merge(merged, layer)
    return merged


def _with_current_names(layer: Branch) -> Branch:
    """`layer` with its sections of earlier versions under their names of today. The log receives a line for each."""
    children = {key: node for key, node in layer.children.items() if key not in RENAMED}
    for former, name in RENAMED.items():
        if former in layer.children:
            node, same = layer.children[former], children.get(name)
            _report_renamed(str(node.source), former, name)
            children[name] = _merge(same, node) if isinstance(same, Branch) and isinstance(node, Branch) else node
    return Branch(layer.source, children)


@cache
def _report_renamed(source: str, former: str, name: str) -> None:
    """Once per command, which reads a file several times."""
    _log.warning("%s: the section %s is now named %s: write %s: {kind: ...}", source, former, name, name)


def _merge(under: Branch, over: Branch, path: tuple[str, ...] = ()) -> Branch:
    if over.is_emptied and len(path) > (2 if path[:1] == ("hosts",) else 1):
        return over
    children: dict[str, Node] = dict(under.children)
    for key, node in over.children.items():
        below = children.get(key)
        merges = isinstance(node, Branch) and isinstance(below, Branch)
        children[key] = _merge(below, node, (*path, key)) if merges else node  # type: ignore[arg-type]  # both branches
    # A section is where it was written first; each key in it has a place of its own.
    return Branch(under.source, children, under.is_emptied)


def _forget(under: Branch, over: Branch) -> Branch:
    """Without what belonged to another env, or to another kind of a section, than `over` requests."""
    children = dict(under.children)
    for section, name in (("env", "id"), ("algorithm", "kind"), *((section, "kind") for section in SECTIONS)):
        before, after = under.at((section, name)), over.at((section, name))
        old = children.get(section)
        if isinstance(after, Leaf) and isinstance(old, Branch) and _differs(before, after):
            children[section] = Branch(old.source, {k: v for k, v in old.children.items() if _is_common(section, k)})
            evaluator = children.get("evaluator")
            if section == "env" and isinstance(evaluator, Branch):
                children["evaluator"] = replace(evaluator, children={**evaluator.children, "env": Branch(old.source)})
    return Branch(under.source, children)


def _is_common(section: str, key: str) -> bool:
    """Whether a key keeps its meaning when the env id or the kind of its section changes."""
    return key not in ("kwargs", "wrappers", "schedule") if section == "env" else key in common_keys(section)


def _differs(before: Node | None, after: Leaf) -> bool:
    return not isinstance(before, Leaf) or before.value != after.value


def _from_flag(pair: str) -> Branch:
    key, equals, text = pair.partition("=")
    if not equals:
        raise ConfigError("write --set key=value, such as --set run.seed=2", key=("--set",), value=pair)
    source = Source(f"--set {key.strip()}")
    return _nest(_parts(key, source), _resets(parse(text, f"--set {pair}"), source), SET)


def _parts(key: str, source: Source) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in key.split("."))
    if not all(parts):
        raise ConfigError(f"{key!r} is not a dotted key such as run.seed", key=(), source=str(source))
    return parts


def _resets(node: Node, source: Source) -> Node:
    if isinstance(node, Branch):
        return replace(node, source=SET, children={key: _resets(child, source) for key, child in node.children.items()})
    return Leaf(RESET if node.value is None else node.value, SET)


def _nest(parts: tuple[str, ...], node: Node, source: Source) -> Branch:
    for part in reversed(parts):
        node = Branch(source, {part: node})
    assert isinstance(node, Branch)
    return node


def _from_value(value: Any, source: Source) -> Node:
    if isinstance(value, Mapping):
        return Branch(source, {str(key): _from_value(item, source) for key, item in value.items()}, not value)
    if isinstance(value, tuple):
        value = list(value)
    return Leaf(RESET if value is None else value, source)


def _stored(value: Any, source: Source) -> Node:
    if isinstance(value, Mapping):
        return Branch(source, {str(key): _stored(item, source) for key, item in value.items()})
    return Leaf(value, source)


def with_absolute_paths(tree: Branch) -> Branch:
    """Values of `PATHS` as absolute paths, while it is known where each was written; flags: from the current folder."""
    for key in PATHS:
        section, leaf = tree.children.get(key[0]), tree.at(key)
        if isinstance(section, Branch) and isinstance(leaf, Leaf) and isinstance(leaf.value, (str, list)):
            named = leaf.value if isinstance(leaf.value, list) else [leaf.value]
            paths = [absolute(path, leaf.source, ".".join(key)) if isinstance(path, str) else path for path in named]
            found = Leaf(paths if isinstance(leaf.value, list) else paths[0], leaf.source)
            changed: dict[str, Node] = {**section.children, key[1]: found}
            tree = Branch(tree.source, {**tree.children, key[0]: Branch(section.source, changed)})
    return tree


def absolute(path: str, source: Source, key: str) -> str:
    """A path that was written at `source`, from the folder of that file; one of a flag from the current folder."""
    base_folder = Path(source.name).absolute().parent if source.line is not None else Path.cwd()
    # Links are not followed: a link's own name is the name of the module.
    return os.path.normpath(Path(base_folder, expanded(path, key, str(source))))


def check_code(code: CodeSection) -> None:
    """Raise `ConfigError` when something to send is not there, or two things have one name."""
    named: dict[str, str] = {}
    for path in code.sync:
        name = Path(path).name
        if not Path(path).exists():
            raise ConfigError("no such file or folder", key=SYNC, value=repr(path))
        if not name:
            raise ConfigError("set a folder or a file inside it", key=SYNC, value=repr(path))
        if named.setdefault(name, path) != path:
            both = f"{path!r} and {named[name]!r}"
            raise ConfigError(f"both would be imported as {name!r}", key=SYNC, value=both, fix="rename one")
