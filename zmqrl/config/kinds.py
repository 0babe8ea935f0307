"""Sections whose kind has further keys: next to `kind` in files, in `options` of the section in a `Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from zmqrl.config.codec import from_json, names_of
from zmqrl.config.sections import (
    FORBID_UNKNOWN,
    MemoryBackendSection,
    OrchestratorSection,
    StoreSection,
)
from zmqrl.errors import ConfigError

OPTIONS = "options"
SECTIONS: Mapping[str, type[Any]] = {
    "store": StoreSection,
    "memory_backend": MemoryBackendSection,
    "orchestrator": OrchestratorSection,
}
RENAMED = {"segment_transport": "memory_backend"}
"""Sections of earlier versions, which are accepted, and their names."""
KindConfig: TypeAlias = Callable[[str, str], type[Any]]
"""Function from a section and its kind to the frozen config class of that kind; ConfigError: the kind is unknown."""


@dataclass(frozen=True)
class NoKeys:
    """The configuration of a kind without keys of its own."""

    __pydantic_config__ = FORBID_UNKNOWN


NO_KEYS = NoKeys()


def common_keys(section: str) -> list[str]:
    """The keys that every kind of a section has, `kind` among them."""
    cls = SECTIONS.get(section)
    return ["kind"] if cls is None else [name for name in names_of(cls) if name != OPTIONS]


def options_of(cls: type[Any], section: str, options: Mapping[str, Any]) -> Any:
    """The kind's own keys as its config class. ConfigError where `options` were not made for it."""
    try:
        return from_json(cls, dict(options))
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error), key=(section,)) from error


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """`to_json` of a `Config` as files have it."""
    return {key: _flat(value) if key in SECTIONS else value for key, value in config.items()}


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `flat`: what `from_json` makes a `Config` of. `config` may be of an earlier version."""
    current = {key: value for key, value in config.items() if key not in RENAMED}
    current.update({name: config[former] for former, name in RENAMED.items() if former in config})
    return {
        key: _nested(key, value) if key in SECTIONS and isinstance(value, Mapping) else value
        for key, value in current.items()
    }


def _flat(section: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in section.items() if key != OPTIONS}, **section[OPTIONS]}


def _nested(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    common = common_keys(name)
    own = {key: value for key, value in section.items() if key not in common}
    return {**{key: value for key, value in section.items() if key in common}, OPTIONS: own}
