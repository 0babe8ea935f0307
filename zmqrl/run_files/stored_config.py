"""`config.json` of a run: the configuration as it was resolved, which a resume continues with."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import from_json, object_of, to_json
from zmqrl.config.hosts import shortened
from zmqrl.config.kinds import flat, nested
from zmqrl.config.paths import content_of
from zmqrl.config.sections import Config
from zmqrl.config.webhook import without_secrets
from zmqrl.data_stores.make import place_of
from zmqrl.errors import ConfigError, FolderOfRuns
from zmqrl.run_files.run_info import read_info
from zmqrl.run_files.trained_env import KEY, stored_env
from zmqrl.types import EnvSpec

FORMAT_VERSION, IMPLICIT_STATE = 2, 1
"""Formats of `config.json`. In runs of 1 `env.recovery: exact` used `get_state` and `set_state` of envs with both."""
RUNS_NAMED = 5


def stored_config(config: Config, env: EnvSpec | None = None) -> dict[str, Any]:
    """The content of `config.json`: what `read_config` and, of a run, `read_trained_env` read."""
    kept = flat(to_json(without_secrets(config)))
    trained = {} if env is None else {KEY: stored_env(env)}
    return {"format_version": FORMAT_VERSION, "config": kept, **trained}


def stored_format(run_dir: Path) -> int:
    """The format version of the `config.json` in `run_dir`; that of this zmqrl where there is none."""
    try:
        return msgspec.json.decode(content_of(run_dir / "config.json"), type=_StoredConfig).format_version
    except (OSError, msgspec.MsgspecError):
        return FORMAT_VERSION


def stored_place(run_dir: Path, config: Config) -> str:
    """Where the checkpoints of the run in `run_dir` are, as its last attempt left them."""
    info = read_info(run_dir)
    return place_of(config.store, run_dir, None if info is None else info.lineage)


def read_config(run_dir: Path, example: Callable[[str], str] = shlex.quote) -> Config:
    """The configuration of a run as it was resolved.

    `example`: what the user types for one run; the error for the folder of several runs ends with it.

    Raises:
        FolderOfRuns: `run_dir` is the folder of several runs.
        ConfigError: There is none, or it cannot be read.
    """
    path = run_dir / "config.json"
    if not run_dir.exists():
        raise ConfigError.about(f"run directory {run_dir}", "does not exist")
    if not path.exists():
        refuse_folder_of_runs(run_dir, example)
        raise ConfigError.about(run_dir, f"is not a run directory: {path} does not exist")
    try:
        return parse_config(content_of(path), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


class _StoredConfig(msgspec.Struct, frozen=True):
    """The content of `config.json`; `config` is parsed once the version is known."""

    format_version: int
    config: dict[str, Any]


@contextlib.contextmanager
def stored_in(run_dir: Path) -> Iterator[None]:
    """A ConfigError of the block is of a value in `config.json` of this run, and names the file."""
    try:
        yield
    except ConfigError as error:
        raise error.replaced(source=str(run_dir / "config.json")) from error.__cause__


def parse_config(content: bytes, where: str) -> Config:
    """The configuration in a `config.json`. ConfigError: it is none; `where` names the file."""
    try:
        stored = msgspec.convert(object_of(content), _StoredConfig)
        if stored.format_version not in (IMPLICIT_STATE, FORMAT_VERSION):
            known = f"{IMPLICIT_STATE} and {FORMAT_VERSION}"
            what = f"has format version {stored.format_version}, this zmqrl reads {known}"
            raise ConfigError.about(where, what)
        return from_json(Config, nested(stored.config))
    except (ValueError, TypeError, RecursionError) as error:
        what, fix = f"is not the configuration of a run: {error}", "restore the file from a copy of the run"
        raise ConfigError.about(where, what, fix) from error


def refuse_folder_of_runs(folder: Path, example: Callable[[str], str] = shlex.quote) -> None:
    """Raise `FolderOfRuns` where `folder` has run directories; `example`: what the user types for one of them."""
    runs = sorted((path.parent for path in folder.glob("*/config.json")), key=_by_number)
    if runs:
        named = shortened((path.name for path in runs), RUNS_NAMED)
        count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        message = f"{folder} is a folder of {count} ({named}); name one of them: {example(str(runs[0]))}"
        raise FolderOfRuns(message, tuple(map(str, runs)))


def _by_number(path: Path) -> tuple[str, int]:
    """seed-2 before seed-10."""
    name = path.name.rstrip("0123456789")
    return name, int(path.name[len(name) :] or 0)
