"""The runs that `zmqrl plot` draws: from its arguments to groups of runs with a label."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.paths import content_of
from zmqrl.errors import ConfigError

METRICS, EPISODES_CSV = "metrics.jsonl", "episodes.csv"


@dataclass(frozen=True)
class RunGroup:
    """Runs of one line."""

    label: str
    runs: tuple[Path, ...]
    """Run directories with `metrics.jsonl`."""


def group_of(argument: str) -> RunGroup:
    """The runs of `PATH` or `PATH=LABEL`.

    `PATH` is a run directory, a folder with `seed-*`, or, where it is not a folder, the beginning of the names of such
    directories. `=` in the names of directories is part of the path.

    Raises:
        ConfigError: No run was found.
    """
    found = _runs_of(Path(argument))
    if found:
        return RunGroup(_name(argument), found)
    path, separator, label = argument.rpartition("=")
    if separator and label and (found := _runs_of(Path(path), other_than=f"{Path(path).name}=")):
        return RunGroup(label, found)
    if separator and not (path and label):
        raise ConfigError(f"{'LABEL' if path else 'RUN'} is missing", fix="write RUN=LABEL", source=argument)
    shown = path if separator else argument
    if Path(shown).is_dir():
        what = f"has no row yet: {METRICS} is missing in this directory, and in its directories seed-*"
        fix = "draw a run that has just started later, or leave it out"
        raise ConfigError.about(shown, what, fix)
    raise ConfigError("no run directory has this name, and none has a name that begins with it", source=shown)


def env_ids(runs: Iterable[Path]) -> list[str]:
    """Ids of their envs, each once, in order; those without a readable configuration are left out."""
    found = dict.fromkeys(stored_value(run, "env", "id") for run in runs)
    return [str(env) for env in found if env is not None]


def stored_value(run: Path, section: str, key: str) -> Any:
    """A value of the configuration of a run; None: it cannot be read."""
    try:
        return json.loads(content_of(run / "config.json"))["config"][section][key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def by_number(run: Path) -> tuple[int, str]:
    """Key of an order in which seed 10 follows seed 9."""
    number = run.name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0), str(run)


def _runs_of(path: Path, other_than: str | None = None) -> tuple[Path, ...]:
    """`other_than`: names that begin so do not count: `lr=0.2` is not `lr=0.1` with a label."""
    if path.is_dir():
        return _in(path)
    folders = _beginning_with(path)
    fitting = [folder for folder in folders if other_than is None or not folder.name.startswith(other_than)]
    return tuple(run for folder in fitting for run in _in(folder))


def _in(folder: Path) -> tuple[Path, ...]:
    if (folder / METRICS).is_file():
        return (folder,)
    return tuple(sorted((file.parent for file in folder.glob(f"seed-*/{METRICS}")), key=by_number))


def _beginning_with(path: Path) -> list[Path]:
    if not path.name or not path.parent.is_dir():
        return []
    return sorted(entry for entry in path.parent.iterdir() if entry.name.startswith(path.name) and entry.is_dir())


def _name(argument: str) -> str:
    return Path(argument).resolve().name.rstrip("-_.") or argument
