"""Presets: files with a configuration, of the package or of the user, each on top of those that it builds on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from zmqrl.config.foreign.aliases import ENV_ID, not_a_preset
from zmqrl.config.overrides import from_stored, merge_all
from zmqrl.config.paths import expanded
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source, read_file
from zmqrl.errors import ConfigError

PRESETS = Path(__file__).parents[1] / "presets"
OF_PACKAGE = "preset "
"""Before the name of a preset of the package as the place of a key: its file is not the user's to change."""
PRESET = ("run", "preset")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_of_package(source: Source) -> bool:
    """Whether a key is from a preset of the package."""
    return source.line is None and source.name.startswith(OF_PACKAGE)


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def scores() -> Mapping[str, Mapping[str, float]]:
    """Scores of presets: `score`, `scored_env_steps` after which it was measured, and `minutes` on two cores."""
    found: Mapping[str, Mapping[str, float]] = json.loads((PRESETS / "scores.json").read_text())
    return found


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
    return {name: read_file(PRESETS / f"{name}.yaml").text("env", "id") for name in presets()}


def preset_name(preset: str, base_folder: Path | None = None) -> str:
    """What a run's configuration keeps of a preset: the name of a preset of the package, else the absolute path."""
    path = preset_path(preset, base_folder)
    return path.stem if path.parent == PRESETS else str(path.resolve())


def written_at(node: Node | None) -> str:
    """The place of a node, for the field `source` of an error."""
    return "" if node is None else str(node.source)


def preset_layers(path: Path, named: Node | None = None, above: Sequence[Path] = ()) -> Sequence[Branch]:
    """The file of a preset, behind those that its `run.preset` builds on, each with its own `modes`.

    `named`: what it builds on in place of its own `run.preset`. `above`: files that build on this one.
    """
    if path in above:
        what = f"{path} refers to itself, directly or through other presets"
        raise ConfigError(what, key=PRESET, fix="change its run.preset")
    if isinstance(named, Leaf) and isinstance(named.value, str) and path.parent == PRESETS:
        what, fix = f"cannot be combined with the preset {path.stem}", "name only one of the two"
        raise ConfigError(what, key=PRESET, value=repr(named.value), is_subject=True, fix=fix, source=str(named.source))
    name = {"run": {"name": path.stem}} if NAME.fullmatch(path.stem) else {}
    place = f"{OF_PACKAGE}{path.stem}" if path.parent == PRESETS else None
    content = read_file(path, place)
    if not content.children:
        raise ConfigError("the file sets no key", source=str(path))
    node = named or content.at(PRESET)
    lower: Sequence[Branch] = ()
    if isinstance(node, Leaf) and isinstance(node.value, str):
        try:
            lower = preset_layers(preset_path(node.value, None if named else path), None, [*above, path])
        except ConfigError as error:
            raise error.of(PRESET, source=written_at(node)) from error.__cause__
    return [*lower, merge_all([from_stored(name, Source(place or str(path))), content])]
