"""Keys of algorithms in earlier versions, which are accepted in files, on the command line and in runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from zmqrl.config.codec import names_of

if TYPE_CHECKING:
    from zmqrl.config.yaml_source import Branch, Node

FORMER = {"learning_rate_schedule": "learning_rate", "clip_schedule": "clip"}
"""Former keys of PPO, and the key that each is a part of now: `linear` took its number to 0 at the horizon's end."""
VALUES = CONSTANT, LINEAR = "constant", "linear"
_log = logging.getLogger(__name__)


def current_options(cls: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stored algorithm with the keys of its class `cls`."""
    found = dict(options)
    for former, name in _former_keys(cls, options):
        value = found.get(name, getattr(cls, name, None))
        if found.pop(former) == LINEAR and isinstance(value, (int, float)):
            found[name] = {"start": value, "end": 0.0}
    return found


def current_tree(cls: type[Any], section: Branch) -> Branch:
    """The section of an algorithm as it was written, likewise. The log receives a line for each former key."""
    from zmqrl.config.yaml_source import Branch, Leaf  # it imports yaml, which processes of a run do without

    children = dict(section.children)
    leaves = {key: node.value for key, node in children.items() if isinstance(node, Leaf)}
    for former, name in _former_keys(cls, leaves):
        schedule, node = children.pop(former), children.get(name)
        _report(str(schedule.source), former, name)
        start = Leaf(getattr(cls, name, None), schedule.source) if node is None else node
        if leaves[former] == LINEAR and isinstance(start, Leaf):
            ends: dict[str, Node] = {"start": start, "end": Leaf(0.0, schedule.source)}
            children[name] = Branch(schedule.source, ends)
        elif leaves[former] == CONSTANT and isinstance(node, Branch) and node.source.name != schedule.source.name:
            children[name] = node.children.get("start", node)  # a later file makes that of a preset constant
    return Branch(section.source, children, section.is_emptied)


def _former_keys(cls: type[Any], options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Former keys among `options`, each with its present one, that are not fields of `cls`."""
    own = names_of(cls)
    return [(old, new) for old, new in FORMER.items() if options.get(old) in VALUES and old not in own and new in own]


@cache
def _report(source: str, former: str, name: str) -> None:
    """Once per command, which reads a file several times."""
    what = f"algorithm.{former} is now a part of algorithm.{name}"
    _log.warning("%s: %s: one that goes to 0 is `%s: {start: NUMBER, end: 0}`", source, what, name)
