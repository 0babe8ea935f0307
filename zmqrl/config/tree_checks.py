"""Checks of the merged tree, which becomes the sections, each with the keys of its kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from zmqrl.config.codec import replace, to_json
from zmqrl.config.former_keys import current_tree
from zmqrl.config.keys import all_keys
from zmqrl.config.kinds import SECTIONS, KindConfig, common_keys
from zmqrl.config.known_keys import KnownKeys
from zmqrl.config.overrides import RESET
from zmqrl.config.sections import Config
from zmqrl.config.validate import UnknownKey, joined, unknown_keys, validated
from zmqrl.config.yaml_source import Branch, Leaf, shown
from zmqrl.errors import ConfigError


def checked(tree: Branch, config_of: KindConfig) -> Config:
    """The configuration of a merged tree, with the keys of each kind. ConfigError: what is wrong in it."""
    if unknown := list(_unknown_keys(tree, config_of)):
        known = known_keys(tree, config_of)
        raise joined([error.among(known) for error in sorted(unknown, key=lambda error: error.place)])
    return _valid(tree, config_of)


def _unknown_keys(tree: Branch, config_of: KindConfig) -> Iterator[UnknownKey]:
    """Unknown keys of all sections; not of kinds that are unknown, which `_valid` refuses."""
    children = dict(tree.children)
    for section in ("algorithm", *SECTIONS):
        node = children.pop(section, None)
        if not isinstance(node, Branch):
            continue
        common, kind = common_keys(section), node.text("kind") or _default_kind(section)
        children[section] = Branch(node.source, {key: n for key, n in node.children.items() if key in common})
        with contextlib.suppress(ConfigError):
            cls = config_of(section, kind)
            own = {key: n for key, n in node.children.items() if key not in common}
            yield from unknown_keys(cls, current_tree(cls, Branch(node.source, own)), (section,), common)
    yield from unknown_keys(Config, Branch(tree.source, children))


def _default_kind(section: str) -> str:
    return str(SECTIONS[section]().kind if section in SECTIONS else Config().algorithm["kind"])


def known_keys(tree: Branch, config_of: KindConfig) -> KnownKeys:
    """All keys that a configuration of the kinds in `tree` may have."""
    kinds = {}
    for section in ("algorithm", *SECTIONS):
        kind = tree.text(section, "kind") or _default_kind(section)
        with contextlib.suppress(ConfigError):  # an unknown kind is not what is wrong here
            kinds[section] = {kind: config_of(section, kind)}
    algorithm = next(iter(kinds.get("algorithm", ())), None)
    return KnownKeys(tuple(key.name for part in all_keys(kinds) for key in part.keys), algorithm)


def _valid(tree: Branch, config_of: KindConfig) -> Config:
    children, own = dict(tree.children), {}
    for section, cls in SECTIONS.items():
        node = children.get(section, Branch(tree.source))
        if isinstance(node, Branch):  # else it is refused with the other sections
            common = common_keys(section)
            own[section] = _kind_options(node, section, cls().kind, config_of)[1]
            children[section] = Branch(node.source, {key: n for key, n in node.children.items() if key in common})
    algorithm = children.pop("algorithm", Branch(tree.source))
    config = validated(Config, Branch(tree.source, children))
    if isinstance(algorithm, Leaf):
        fix, source = "did you mean algorithm.kind?", str(algorithm.source)
        raise ConfigError("must be a mapping", key=("algorithm",), value=shown(algorithm.value), fix=fix, source=source)
    kind, options = _kind_options(algorithm, "algorithm", config.algorithm["kind"], config_of)
    sections = {section: replace(getattr(config, section), options=found) for section, found in own.items()}
    return replace(config, algorithm={"kind": kind, **options}, **sections)


def _kind_options(node: Branch, section: str, default: str, config_of: KindConfig) -> tuple[str, dict[str, Any]]:
    """The kind of a section, and the kind's own keys, validated by its config class."""
    kind = node.children.get("kind", Leaf(default, node.source))
    if isinstance(kind, Leaf) and kind.value is RESET:
        kind = Leaf(default, kind.source)
    if not isinstance(kind, Leaf) or not isinstance(kind.value, str):
        what = f"must be a name such as {default}, or module:Name"
        raise ConfigError(what, key=(section, "kind"), source=str(kind.source))
    try:
        cls = config_of(section, kind.value)
    except ConfigError as error:
        raise error.of((section, "kind"), source=str(kind.source)) from error.__cause__
    common = common_keys(section)
    fields = {key: child for key, child in node.children.items() if key not in common}
    return kind.value, to_json(validated(cls, current_tree(cls, Branch(kind.source, fields)), (section,), common))
