"""The resolved configuration: preset < its `modes.<mode>` < hosts.yaml < `--set`, each key with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config import hosts as hosts_of
from zmqrl.config.codec import names_of, replace
from zmqrl.config.host_checks import check_hosts
from zmqrl.config.inventory import hosts_of_inventory
from zmqrl.config.kinds import KindConfig
from zmqrl.config.overrides import (
    RESET,
    SET,
    absolute,
    as_one,
    check_code,
    from_flags,
    from_mapping,
    from_stored,
    merge_all,
    with_absolute_paths,
)
from zmqrl.config.presets import (
    NAME,
    PRESET,
    is_of_package,
    preset_layers,
    preset_name,
    preset_path,
    presets,
    written_at,
)
from zmqrl.config.sections import Config
from zmqrl.config.tree_checks import checked
from zmqrl.config.validate import UnknownKey, validated
from zmqrl.config.webhook import check_webhook
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source, read_file, shown
from zmqrl.errors import DEFAULT, ConfigError, Key
from zmqrl.types import MODES, ModeName

OF_LOGINS = ("hosts", "defaults", "ssh")
"""The sections that define how hosts are logged into."""
SECTIONS_OF_CONFIG = frozenset((name,) for name in names_of(Config))


@dataclass(frozen=True)
class Sources:
    """Where each key was written."""

    written: Sequence[tuple[Key, Source]]
    """A list, which crosses a process boundary as JSON; keys of a mapping would be texts there."""

    @property
    def by_key(self) -> Mapping[Key, Source]:
        return dict(self.written)

    def place(self, error: ConfigError) -> ConfigError:
        """`error` with the source of its key, unless it has one.

        A section does not locate its keys: another layer may have written something else in it. A key of a host without
        its own source has that of the host. Where the user did not write the key, the error names the sources of the
        other keys that it mentions.
        """
        key = error.key
        if error.source or key[:1] not in SECTIONS_OF_CONFIG:
            return error
        by_key = self.by_key
        source = by_key.get(key) or (by_key.get(key[:2]) if key[0] == "hosts" else None)
        if source is not None and not is_of_package(source):
            return error.replaced(source=str(source))
        found = {".".join(other): by_key[other] for other in sorted(error.others) if other in by_key}
        places = tuple((name, str(other)) for name, other in found.items() if not is_of_package(other))
        return error.replaced(source=DEFAULT if source is None else str(source), places=places)


@dataclass(frozen=True)
class Loaded:
    """A resolved configuration and where its keys were written."""

    config: Config
    sources: Sources
    is_auto_here: bool = False
    """Whether the workers of this machine were `auto`, which `config` has as a number."""


@dataclass(frozen=True)
class Request:
    """What the command line or `zmqrl.train` requested; None and empty: nothing."""

    preset: str | None = None
    hosts_file: Path | None = None
    overrides: Sequence[str] | Mapping[str, Any] = ()
    mode: ModeName | None = None
    workers: int | None = None
    seed: int | None = None
    init_from: str | None = None
    """`--init-from`: a run directory or a file."""
    limit: Sequence[str] = ()
    """`--limit`: names, ranges, patterns or groups of hosts, separated by commas."""
    stored: Mapping[str, Any] | None = None
    """The configuration of the run that is resumed, as JSON data; it takes the preset's place."""
    stored_file: Path | None = None
    hosts_text: str | None = None
    """Content of `hosts_file`, which may be stdin; None: it is read."""
    sections: Mapping[str, Any] | None = None
    """Sections in the place of a preset."""
    held_workers: int = 0
    """Workers of other runs on this machine, which `workers: auto` leaves their cores."""
    sections_name: str = "--env"
    """Where they are from, for messages."""


def resolve(request: Request, config_of: KindConfig) -> Loaded:
    """Merge, validate and fill in. ConfigError is one message with file, line, key and value."""
    tree, preset = _merged(request)
    sources = Sources([(key, node.source) for key, node in tree.nodes()])
    config = checked(tree, config_of)
    try:
        return Loaded(_resolved(config, preset, request), sources, hosts_of.is_auto_here(config, request.limit))
    except ConfigError as error:
        raise sources.place(error) from error.__cause__


def start_limit_s(request: Request) -> float:
    """`limits.start_s` as it was written, before the keys are checked."""
    node = _merged(request)[0].at(("limits", "start_s"))
    value = node.value if isinstance(node, Leaf) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else Config().limits.start_s


def resolve_logins(hosts_file: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Only how hosts are logged into: the sections of runs are not read, whose kinds may be unknown on this machine.

    Raises:
        ConfigError: One message with file, line, key and value.
    """
    flags = as_one(from_flags(overrides), SET)
    file = read_file(hosts_file) if hosts_file is not None else Branch(Source("defaults"))
    tree = merge_all(_expanded(layer) for layer in (_inventory(merge_all([file, flags])), file, flags))
    kept = {key: node for key, node in tree.children.items() if key in OF_LOGINS}
    config = validated(Config, Branch(tree.source, kept))
    check_hosts(config)
    return config


def _merged(request: Request) -> tuple[Branch, str | None]:
    """All layers in one tree, and the preset's name or absolute path."""
    flags = _flags(request)
    nothing = Branch(Source("defaults"))
    hosts_file = _hosts_file(request.hosts_file, request.hosts_text) if request.hosts_file is not None else nothing
    bases, preset = _bases(request, merge_all([hosts_file, flags]))
    inventory = _inventory(merge_all([hosts_file, flags]))
    if request.stored is not None and ("hosts" in hosts_file.children or inventory.children):
        # A resumed run takes the hosts that the file lists now, and none that it no longer lists.
        bases = [Branch(b.source, {key: node for key, node in b.children.items() if key != "hosts"}) for b in bases]
    mode = merge_all([*bases, hosts_file, flags]).text("run", "mode") or Config().run.mode
    layers = [*bases, inventory, hosts_file, flags]
    # Ranges are expanded in each layer, so that `--set hosts.node03.workers=1` goes over `node[01:16]` of the file.
    tree = merge_all(_expanded(part) for layer in layers for part in _for_mode(layer, mode))
    return with_absolute_paths(tree), preset


def _hosts_file(path: Path, text: str | None) -> Branch:
    if str(path) in presets() and not path.exists():
        raise ConfigError(f"{path} is a preset, not a hosts file", fix=f"to train on this machine: zmqrl train {path}")
    return read_file(path, text=text)


def _inventory(above: Branch) -> Branch:
    named = above.children.get("inventory")
    if not isinstance(named, Leaf) or not isinstance(named.value, str):
        return Branch(Source("defaults"))  # null; or it is refused with the other keys
    path = Path(absolute(named.value, named.source, "inventory"))
    return Branch(named.source, {"hosts": hosts_of_inventory(path, named.source)})


def _expanded(layer: Branch) -> Branch:
    hosts = hosts_of.expand(layer.children.get("hosts"))
    return layer if hosts is None else Branch(layer.source, {**layer.children, "hosts": hosts})


def _flags(request: Request) -> Branch:
    """Values of the command line, `--mode` and similar flags last."""
    if isinstance(request.overrides, Mapping):
        layers = from_mapping(request.overrides, Source("override"))
    else:
        layers = from_flags(request.overrides)
    for path, value, name in (
        ("run.mode", request.mode, "--mode"),
        ("hosts.local.workers", request.workers, "--workers"),
        ("run.seed", request.seed, "--seed"),
        ("run.init_from", request.init_from, "--init-from"),
    ):
        if value is not None:
            layers += from_mapping({path: value}, Source(name))
    return as_one(layers, SET)


def _bases(request: Request, above: Branch) -> tuple[Sequence[Branch], str | None]:
    """The lowest layers: the stored configuration of a resumed run, a preset with those it builds on, or nothing."""
    if request.stored is not None:
        return [from_stored(request.stored, Source(str(request.stored_file)))], _stored_preset(request, above)
    named = above.text(*PRESET)
    preset = named if request.preset is None else request.preset
    if request.sections is not None:
        if preset is not None:
            raise ConfigError(f"cannot be combined with {request.sections_name}", key=PRESET, value=repr(preset))
        return [from_stored(request.sections, Source(request.sections_name))], None
    if preset is None:
        return [Branch(Source("defaults"))], None
    node = above.at(PRESET)
    if request.preset is not None:
        return preset_layers(preset_path(preset), node), preset_name(preset)
    try:
        return preset_layers(preset_path(preset, request.hosts_file)), preset_name(preset, request.hosts_file)
    except ConfigError as error:
        raise error.of(PRESET, source=written_at(node)) from error.__cause__


def was_started_with(preset: str | None) -> str:
    """For a message: the preset of a run."""
    return "was started without a preset" if preset is None else f"was started with {preset!r}"


def _stored_preset(request: Request, above: Branch) -> str | None:
    """The preset that a resumed run was started with; the hosts file and the flags may name no other."""
    stored: str | None = (request.stored or {}).get("run", {}).get("preset")
    requested, node = above.text(*PRESET), above.at(PRESET)
    if requested is None or node is None:
        return stored
    try:
        same = preset_name(requested, request.hosts_file) == stored
    except ConfigError as error:
        raise error.of(PRESET, source=str(node.source)) from error.__cause__
    if not same:
        what = f"the run {was_started_with(stored)}"
        raise ConfigError(what, key=PRESET, value=repr(requested), fix="omit the preset", source=str(node.source))
    return stored


def _for_mode(layer: Branch, mode: str) -> list[Branch]:
    """A layer without `modes`, and its section for `mode`."""
    plain = Branch(layer.source, {key: node for key, node in layer.children.items() if key != "modes"})
    modes = layer.children.get("modes")
    if modes is None or (isinstance(modes, Leaf) and modes.value is None):
        return [plain]
    if isinstance(modes, Leaf):
        what = f"must be a mapping with the keys {', '.join(MODES)}"
        raise ConfigError(what, key=("modes",), value=shown(modes.value), source=str(modes.source))
    found = [plain]
    for key, node in modes.children.items():
        if key not in MODES:
            raise UnknownKey(node, ("modes", key), list(MODES))
        if isinstance(node, Branch):
            if isinstance(own := node.at(("run", "mode")), Leaf):
                raise ConfigError(
                    "a section of `modes` cannot set the mode",
                    key=("modes", key, "run", "mode"),
                    value=shown(own.value),
                    fix="set run.mode",
                    source=str(own.source),
                )
            if key == mode:
                found.append(_of_mode(node, mode))
        elif node.value not in (None, RESET):
            what = "must be a mapping of sections"
            raise ConfigError(what, key=("modes", key), value=shown(node.value), source=str(node.source))
    return found


def _of_mode(node: Branch, mode: str) -> Branch:
    """A section of `modes`. Each key keeps its file and line; without a line its place is the section."""

    def moved(node: Node) -> Node:
        source = node.source if node.source.line is not None else Source(f"{node.source} modes.{mode}")
        if isinstance(node, Leaf):
            return Leaf(node.value, source)
        return replace(node, source=source, children={key: moved(child) for key, child in node.children.items()})

    return replace(node, children={key: moved(child) for key, child in node.children.items()})


def _resolved(config: Config, preset: str | None, request: Request) -> Config:
    """The configuration with numbers in place of null and of this machine's `auto`, checked."""
    if not NAME.fullmatch(config.run.name):
        what = "may contain only letters, digits, '.', '_' and '-'"
        raise ConfigError(what, key=("run", "name"), value=shown(config.run.name))
    config = hosts_of.with_numbers(hosts_of.limited(config, request.limit), request.held_workers)
    others = [name for name, host in config.hosts.items() if name != hosts_of.LOCAL and host.workers != 0]
    if request.workers is not None and others:
        what = f"--workers applies to this machine only, and other hosts are listed: {hosts_of.shortened(others)}"
        raise ConfigError(what, fix="set hosts.NAME.workers, or use --limit local")
    check_hosts(config)
    check_code(config.code)
    check_webhook(config)
    return replace(config, run=replace(config.run, preset=preset, schedule_env_steps=config.horizon))
