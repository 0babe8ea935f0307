"""The run directory: what is in it, and who may use it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.config.store_path import store_path
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunInfo:
    """`run.json`: which process drives the run; what `status` and `stop` find it by."""

    run_id: str
    pid: int
    start_time: int
    host: str
    started_at: float
    preset: str | None
    ended_at: float | None = None
    """Unix time; a run of `zmqrl.train` ends before its process does."""
    lineage: str | None = None
    """Id of the lineage, which all attempts share; None: the last attempt was of zmqrl 0.1."""
    attempt: int = 1

    @property
    def live(self) -> bool:
        """Whether the launcher still runs, as far as this machine can tell."""
        return (
            self.ended_at is None
            and self.host == socket.gethostname()
            and is_alive(ProcessId(self.pid, self.start_time))
        )


def resume_command(run_dir: Path | str) -> str:
    """What its user types to go on with a run; it takes hosts and all from there."""
    return f"zmqrl train --resume {shlex.quote(str(run_dir))}"


class RunDirectory:
    """Paths of a run, and its writer."""

    def __init__(self, path: Path, created: bool) -> None:
        self.path = path
        self._created = created

    @classmethod
    def create(cls, plan: RunPlan) -> RunDirectory:
        """Make it, or take over one whose launcher is gone. ConfigError when a run is using it.

        Once this returns the directory, `config.json` and `run.json` survive a power cut.
        """
        path = Path(plan.run_dir)
        info = read_info(path)
        if info is not None and info.live:
            raise ConfigError(f"{path} is in use by run {info.run_id} (pid {info.pid}): `zmqrl stop {path}` ends it")
        directory = cls(path, created=not path.exists())
        files.make_directory(str(path))
        for folder in (path / "logs", path / "checkpoints"):
            with contextlib.suppress(FileExistsError):
                files.mkdir(str(folder))  # durable with the files below
        me = identify(os.getpid())
        assert me is not None
        preset = plan.config.run.preset
        run = RunInfo(plan.run_id, me.pid, me.start_time, socket.gethostname(), plan.started_at, preset)
        run = replace(run, lineage=plan.lineage.id, attempt=plan.lineage.attempt)
        config = {"format_version": FORMAT_VERSION, "config": to_json(plan.config)}
        directory.write("config.json", config, durable=True)
        directory.write("run.json", to_json(run), durable=True)
        return directory

    def write(self, name: str, data: Mapping[str, Any], durable: bool = False) -> None:
        """A JSON file, whole or not at all; with `durable` it survives a power cut once this returns."""
        temporary = self.path / f".{name}.{os.getpid()}"
        content = (json.dumps(data, indent=2) + "\n").encode()
        files.replace(str(self.path / name), [(0, content)], str(temporary), durable)

    def write_durably(self, name: str, content: bytes) -> None:
        """A file, whole or not at all, that survives a power cut once this returns."""
        files.replace(str(self.path / name), [(0, content)], str(self.path / f".{name}.{os.getpid()}"), durable=True)

    def mark_ended(self, now: float) -> None:
        """The summary is written: whoever looks for a live run passes by, and another may go on here."""
        info = read_info(self.path)
        if info is not None:
            self.write("run.json", to_json(replace(info, ended_at=now)), durable=True)

    def discard(self) -> None:
        """Nothing was started after all: remove what `create` made, and only if it made the directory."""
        if self._created:
            shutil.rmtree(self.path, ignore_errors=True)


def read_info(run_dir: Path) -> RunInfo | None:
    """`run.json` of a run directory; None when there is none or it cannot be read."""
    try:
        return from_json(RunInfo, json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def stored_path(run_dir: Path, config: Config) -> Path:
    """Where the checkpoints of the run in `run_dir` are, as its last attempt left them."""
    info = read_info(run_dir)
    return store_path(config.store.path, run_dir, None if info is None else info.lineage)


def read_config(run_dir: Path) -> Config:
    """The configuration of a run as it was resolved. ConfigError names what is wrong."""
    path = run_dir / "config.json"
    if not path.exists():
        raise ConfigError(
            f"{path} is no configuration of a run: there is no such file; a run writes it before its first env step, "
            "so nothing was trained here that a resume could go on with"
        )
    try:
        data = json.loads(path.read_text())
        if data["format_version"] != FORMAT_VERSION:
            raise ConfigError(f"{path} has format version {data['format_version']}, this zmqrl reads {FORMAT_VERSION}")
        return from_json(Config, data["config"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no configuration of a run: {error}") from error
