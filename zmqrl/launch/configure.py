"""What the command line and `zmqrl.train` call: from a preset, a hosts file and overrides to a resolved `Config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import to_json
from zmqrl.config.load import Loaded, Request, resolve
from zmqrl.config.sections import Config
from zmqrl.launch.run_directory import read_config
from zmqrl.plugins import load as load_plugin
from zmqrl.types import Mode


def load_config(
    preset: str | None = None,
    hosts_file: Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    mode: Mode | None = None,
    workers: int | None = None,
    seed: int | None = None,
) -> Config:
    """The resolved configuration: `auto` and null are numbers where a number is needed. ConfigError is one message."""
    return load(preset, hosts_file, overrides, mode, workers, seed).config


def load(
    preset: str | None = None,
    hosts_file: Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    mode: Mode | None = None,
    workers: int | None = None,
    seed: int | None = None,
    stored: Path | None = None,
    limit: Sequence[str] = (),
    init_from: str | None = None,
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
    """
    data = to_json(read_config(stored)) if stored is not None else None
    stored_file = stored / "config.json" if stored is not None else None
    request = Request(preset, hosts_file, overrides, mode, workers, seed, init_from, limit, data, stored_file)
    return resolve(request, _algorithm_config)


def _algorithm_config(kind: str) -> type[Any]:
    found: type[Any] = load_plugin(kind, "zmqrl.algorithms", Algorithm).Config
    return found
