"""The resolved configuration: preset < its `modes.<mode>` < hosts.yaml < `--set`, each key with its source."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config import hosts as hosts_of
from zmqrl.config.codec import names_of, replace, to_json
from zmqrl.config.foreign.aliases import ENV_ID, not_a_preset
from zmqrl.config.host_checks import check_hosts
from zmqrl.config.inventory import hosts_of_inventory
from zmqrl.config.keys import all_keys
from zmqrl.config.kinds import SECTIONS, KindConfig, common_keys
from zmqrl.config.known_keys import KnownKeys
from zmqrl.config.overrides import RESET, SET, as_one, from_flags, from_mapping, from_stored, merge_all
from zmqrl.config.paths import expanded
from zmqrl.config.sections import CodeSection, Config
from zmqrl.config.validate import UnknownKey, joined, unknown_keys, validated
from zmqrl.config.webhook import check_webhook
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source, read_file, shown
from zmqrl.errors import DEFAULT, ConfigError, Key
from zmqrl.types import MODES, ModeName

PRESETS = Path(__file__).parents[1] / "presets"
OF_PACKAGE = "preset "
"""Before the name of a preset of the package as the place of a key: its file is not the user's to change."""
OF_LOGINS = ("hosts", "defaults", "ssh")
"""The sections that define how hosts are logged into."""
SECTIONS_OF_CONFIG = frozenset((name,) for name in names_of(Config))
PRESET, SYNC = ("run", "preset"), ("code", "sync")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def with_absolute_paths(tree: Branch) -> Branch:
    """`code.sync` as absolute paths, while it is known where each was written; flags count from the current folder."""
    code = tree.children.get("code")
    sync = tree.at(("code", "sync"))
    if not isinstance(code, Branch) or not isinstance(sync, Leaf) or not isinstance(sync.value, list):
        return tree
    paths = [_absolute(path, sync.source, "code.sync") if isinstance(path, str) else path for path in sync.value]
    changed: dict[str, Node] = {**code.children, "sync": Leaf(paths, sync.source)}
    return Branch(tree.source, {**tree.children, "code": Branch(code.source, changed)})


def _absolute(path: str, source: Source, key: str) -> str:
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
        if source is not None and not _is_of_package(source):
            return error.replaced(source=str(source))
        found = {".".join(other): by_key[other] for other in sorted(error.others) if other in by_key}
        places = tuple((name, str(other)) for name, other in found.items() if not _is_of_package(other))
        return error.replaced(source=DEFAULT if source is None else str(source), places=places)


def _is_of_package(source: Source) -> bool:
    return source.line is None and source.name.startswith(OF_PACKAGE)


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
    """Of other runs on this machine, which `workers: auto` leaves their cores."""
    sections_name: str = "--env"
    """Where they are from, for messages."""


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_path(preset: str, base_folder: Path | None = None) -> Path:
    """The file of a preset: a name, or a path (relative to `base_folder`, the hosts file that names it)."""
    if preset not in presets() and Path(preset, "run.json").exists():
        fix = f"to continue its run: zmqrl train --resume {shlex.quote(preset)}"
        raise ConfigError("is a run directory", key=PRESET, value=repr(preset), is_subject=True, fix=fix)
    is_path = "/" in preset and not ENV_ID.fullmatch(preset) and not preset.endswith(".py")
    if preset.endswith((".yaml", ".yml")) or is_path:
        path = expanded(preset, "run.preset")
        return base_folder.parent / path if base_folder is not None else path
    if preset in presets():
        return PRESETS / f"{preset}.yaml"
    raise ConfigError(not_a_preset(preset, _envs()), key=PRESET)


def _envs() -> dict[str, str | None]:
    """The env id of each preset."""
    return {name: _text(read_file(PRESETS / f"{name}.yaml"), "env", "id") for name in presets()}


def preset_name(preset: str, base_folder: Path | None = None) -> str:
    """What a run's configuration keeps of a preset: the name of a preset of the package, else the absolute path."""
    path = preset_path(preset, base_folder)
    return path.stem if path.parent == PRESETS else str(path.resolve())


def resolve(request: Request, config_of: KindConfig) -> Loaded:
    """Merge, validate and fill in. ConfigError is one message with file, line, key and value."""
    tree, preset = _merged(request)
    sources = Sources([(key, node.source) for key, node in tree.nodes()])
    config = _validate(tree, config_of)
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
    mode = _text(merge_all([*bases, hosts_file, flags]), "run", "mode") or Config().run.mode
    layers = [*bases, inventory, hosts_file, flags]
    # Ranges are expanded in each layer, so that `--set hosts.node03.workers=1` goes over `node[01:16]` of the file.
    tree = merge_all(_expanded(part) for layer in layers for part in _for_mode(layer, mode))
    return with_absolute_paths(tree), preset


def _hosts_file(path: Path, text: str | None) -> Branch:
    if str(path) in presets() and not path.exists():
        raise ConfigError(f"{path} is a preset, not a hosts file", fix=f"to train on this machine: zmqrl train {path}")
    return read_file(path, text=text)


def _inventory(above: Branch) -> Branch:
    """The hosts of the inventory that the hosts file or a flag names."""
    named = above.children.get("inventory")
    if not isinstance(named, Leaf) or not isinstance(named.value, str):
        return Branch(Source("defaults"))  # null; or it is refused with the other keys
    path = Path(_absolute(named.value, named.source, "inventory"))
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
    named = _text(above, "run", "preset")
    preset = named if request.preset is None else request.preset
    if request.sections is not None:
        if preset is not None:
            what = f"cannot be combined with {request.sections_name}"
            raise ConfigError(what, key=PRESET, value=repr(preset))
        return [from_stored(request.sections, Source(request.sections_name))], None
    if preset is None:
        return [Branch(Source("defaults"))], None
    node = above.at(("run", "preset"))
    if request.preset is not None:
        return _preset_layers(preset_path(preset), node), preset_name(preset)
    try:
        return _preset_layers(preset_path(preset, request.hosts_file)), preset_name(preset, request.hosts_file)
    except ConfigError as error:
        raise error.of(PRESET, source=_written_at(node)) from error.__cause__


def _written_at(node: Node | None) -> str:
    return "" if node is None else str(node.source)


def _preset_layers(path: Path, named: Node | None = None, above: Sequence[Path] = ()) -> Sequence[Branch]:
    """The file of a preset, behind those that its `run.preset` builds on, each with its own `modes`.

    Args:
        path: Of the file.
        named: What it builds on in place of its own `run.preset`.
        above: Files that build on this one.
    """
    if path in above:
        what = f"{path} refers to itself, directly or through other presets"
        raise ConfigError(what, key=PRESET, fix="change its run.preset")
    if isinstance(named, Leaf) and isinstance(named.value, str) and path.parent == PRESETS:
        what, fix = f"cannot be combined with the preset {path.stem}", "name only one of the two"
        raise ConfigError(what, key=PRESET, value=repr(named.value), is_subject=True, fix=fix, source=str(named.source))
    name = {"run": {"name": path.stem}} if _NAME.fullmatch(path.stem) else {}
    place = f"{OF_PACKAGE}{path.stem}" if path.parent == PRESETS else None
    content = read_file(path, place)
    if not content.children:
        raise ConfigError("the file sets no key", source=str(path))
    node = named or content.at(("run", "preset"))
    lower: Sequence[Branch] = ()
    if isinstance(node, Leaf) and isinstance(node.value, str):
        try:
            lower = _preset_layers(preset_path(node.value, None if named else path), None, [*above, path])
        except ConfigError as error:
            raise error.of(PRESET, source=_written_at(node)) from error.__cause__
    return [*lower, merge_all([from_stored(name, Source(place or str(path))), content])]


def was_started_with(preset: str | None) -> str:
    """For a message: the preset of a run."""
    return "was started without a preset" if preset is None else f"was started with {preset!r}"


def _stored_preset(request: Request, above: Branch) -> str | None:
    """The preset that a resumed run was started with; the hosts file and the flags may name no other."""
    stored: str | None = (request.stored or {}).get("run", {}).get("preset")
    requested, node = _text(above, "run", "preset"), above.at(("run", "preset"))
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


def _text(tree: Branch, *path: str) -> str | None:
    node = tree.at(path)
    return node.value if isinstance(node, Leaf) and isinstance(node.value, str) else None


def _validate(tree: Branch, config_of: KindConfig) -> Config:
    if unknown := list(_unknown_keys(tree, config_of)):
        known = known_keys(tree, config_of)
        raise joined([error.among(known) for error in sorted(unknown, key=lambda error: error.place)])
    return _valid(tree, config_of)


def _unknown_keys(tree: Branch, config_of: KindConfig) -> Iterator[UnknownKey]:
    """In all sections; not of kinds that are unknown, which `_valid` refuses."""
    children = dict(tree.children)
    for section in ("algorithm", *SECTIONS):
        node = children.pop(section, None)
        if not isinstance(node, Branch):
            continue
        common, kind = common_keys(section), _text(node, "kind") or _default_kind(section)
        children[section] = Branch(node.source, {key: n for key, n in node.children.items() if key in common})
        with contextlib.suppress(ConfigError):
            cls = config_of(section, kind)
            own = {key: n for key, n in node.children.items() if key not in common}
            yield from unknown_keys(cls, Branch(node.source, own), (section,), common)
    yield from unknown_keys(Config, Branch(tree.source, children))


def _default_kind(section: str) -> str:
    return str(SECTIONS[section]().kind if section in SECTIONS else Config().algorithm["kind"])


def known_keys(tree: Branch, config_of: KindConfig) -> KnownKeys:
    """All keys that a configuration of the kinds in `tree` may have."""
    kinds = {}
    for section in ("algorithm", *SECTIONS):
        kind = _text(tree, section, "kind") or _default_kind(section)
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
    return kind.value, to_json(validated(cls, Branch(kind.source, fields), (section,), common))


def _resolved(config: Config, preset: str | None, request: Request) -> Config:
    """With numbers where `auto` and null stood."""
    if not _NAME.fullmatch(config.run.name):
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
    schedule = config.run.schedule_env_steps or config.run.total_env_steps
    return replace(config, run=replace(config.run, preset=preset, schedule_env_steps=schedule))
