"""What the command line and `zmqrl.train` call: from a preset, a hosts file and overrides to a resolved `Config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.make import kind_of
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.kinds import KindConfig, NoKeys, flat
from zmqrl.config.load import Loaded, Request, resolve, start_limit_s
from zmqrl.config.sections import Config
from zmqrl.config.yaml_source import read_text
from zmqrl.data_stores.base import DataStore
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.messages.check import data_of
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.planning.checked import call, checked_env, located
from zmqrl.planning.own_code import of_main
from zmqrl.planning.without_preset import WithoutPreset
from zmqrl.plugins import load as load_plugin
from zmqrl.plugins import modules
from zmqrl.run_files.trust import opened
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.served_call import Subject
from zmqrl.types import EnvSpec, ModeName

SEAMS: Mapping[str, tuple[str, type[Any]]] = {
    "algorithm": ("zmqrl.algorithms", Algorithm),
    "store": ("zmqrl.data_stores", DataStore),
    "memory_backend": ("zmqrl.memory_backends", MemoryBackend),
    "orchestrator": ("zmqrl.orchestrators", Orchestrator),
}
"""Section to the package of its kinds, and their base class."""
WITHOUT_KEYS = frozenset(
    {
        ("orchestrator", "auto"),
        ("orchestrator", "local"),
        ("orchestrator", "ssh"),
        ("memory_backend", "zmq"),
    }
)
"""Kinds without keys of their own: their modules import what a command that only reads a configuration does without."""


def load_config(
    preset: str | None = None,
    hosts_file: Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
) -> Config:
    """The resolved configuration: `auto` and null are numbers where a number is needed. ConfigError is one message."""
    return load(preset, hosts_file, overrides, mode, workers, seed).config


def load(
    preset: str | None = None,
    hosts_file: Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    mode: ModeName | None = None,
    workers: int | None = None,
    seed: int | None = None,
    stored: Path | None = None,
    limit: Sequence[str] = (),
    init_from: str | None = None,
    without_preset: WithoutPreset | None = None,
    trusted: bool | None = None,
) -> Loaded:
    """Like `load_config`, with the source of each key, which `plan_run` takes to name file and line.

    Args:
        preset: A name of `zmqrl/presets`, or the path of a YAML file.
        hosts_file: hosts.yaml.
        overrides: `key=value` strings as `--set` takes them, or a mapping with dotted or nested keys.
        mode: Over `run.mode` of every file.
        workers: Workers of this machine.
        seed: Over `run.seed`.
        stored: Run directory to resume; its configuration takes the place of the preset.
        limit: Hosts as `--limit` takes them; none: all.
        init_from: Over `run.init_from`.
        without_preset: An env and an algorithm in the place of a preset.
        trusted: See `zmqrl.run_files.trust.allowed`, of `stored` and of the run of `run.init_from`.
    """
    data = flat(to_json(opened(stored, trusted=trusted, to_resume=True))) if stored is not None else None
    stored_file = stored / "config.json" if stored is not None else None
    text = read_text(hosts_file) if hosts_file is not None and hosts_file.exists() else None
    written = (preset, hosts_file, overrides, mode, workers, seed, init_from, limit, data, stored_file, text)
    request = Request(*written, held_workers=HostLock().held_workers())
    loaded = _resolved(request, without_preset)
    if without_preset is not None:  # its keys of `env` decide which spaces there are
        with located(loaded.sources):
            env = checked_env(loaded.config)
        loaded = _resolved(request, without_preset, env)
    source = loaded.config.run.init_from
    if stored is None and source is not None and Path(source, "config.json").is_file():
        opened(Path(source), trusted=trusted)
    return loaded


class _OfUser(Exception):
    """The kind of a section is the user's code."""

    def __init__(self, section: str, kind: str) -> None:
        super().__init__(section, kind)
        self.subject = Subject(repr(kind), (section, "kind"))


def _resolved(request: Request, base: WithoutPreset | None = None, env: EnvSpec | None = None) -> Loaded:
    """See `resolved`; in a check process where the configuration names kinds of the user."""
    try:
        return resolved(request, base, env, _config_of_package)
    except _OfUser as found_kind:
        data = {key: str(value) if isinstance(value, Path) else to_json(value) for key, value in vars(request).items()}
        arguments, limit_s = (data, to_json(base), to_json(env)), start_limit_s(request)
        found = call("resolved", *arguments, subject=found_kind.subject, limit_s=limit_s, key=data_of(arguments))
        return from_json(Loaded, found)


def resolved(request: Request, base: WithoutPreset | None, env: EnvSpec | None, config_of: KindConfig) -> Loaded:
    """`resolve`, over the sections of `base` where there is one.

    `env`: that of `base`; None: without the defaults of the algorithm. `config_of`: from section and kind to a config
    class.
    """
    if base is None:
        return resolve(request, config_of)
    named = replace(request, sections=base.sections(None), sections_name=base.named)
    if env is None:
        return resolve(named, config_of)
    config_of("algorithm", base.algorithm)  # whose defaults are asked for
    first = resolve(named, config_of)
    own = {key: value for key, value in first.config.algorithm.items() if ("algorithm", key) in first.sources.by_key}
    return resolve(replace(named, sections=base.sections(env, own)), config_of)


def _config_of_package(section: str, kind: str) -> type[Any]:
    if (refusal := of_main(f"{section}.kind", kind)) is not None:
        raise refusal
    if ":" in kind:
        raise _OfUser(section, kind)
    return config_of(section, kind)


def config_of(section: str, kind: str) -> type[Any]:
    """The config class of a kind, by the section that names it. ConfigError when the kind is unknown."""
    if (section, kind) in WITHOUT_KEYS:
        return NoKeys
    package, base = SEAMS[section]
    found: type[Any] = (kind_of(kind) if section == "algorithm" else load_plugin(kind, package, base)).Config
    return found


def kinds() -> dict[str, dict[str, type[Any]]]:
    """The kinds of the package by section, each with its config class: for the generated reference and schema."""
    found = {}
    for section, (package, base) in SEAMS.items():
        names = {*modules(package, base), *(kind for named, kind in WITHOUT_KEYS if named == section)}
        found[section] = {kind: config_of(section, kind) for kind in sorted(names)}
    return found
