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
from zmqrl.errors import ConfigError
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

FORMAT_VERSION = 1
SUMMARY, RESERVED = "summary.json", ".summary.json.reserved"
SUMMARY_BYTES = 65_536


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
        """Make it, or take over one whose launcher is gone. ConfigError when a run is using it."""
        path = Path(plan.run_dir)
        info = read_info(path)
        if info is not None and info.live:
            raise ConfigError(f"{path} is in use by run {info.run_id} (pid {info.pid}): `zmqrl stop {path}` ends it")
        directory = cls(path, created=not path.exists())
        try:
            directory._begin(plan)
        except OSError as error:
            directory.discard()
            raise ConfigError(f"run directory {path} cannot be written: {error}") from error
        return directory

    def _begin(self, plan: RunPlan) -> None:
        for folder in (self.path / "logs", self.path / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)
        me = identify(os.getpid())
        assert me is not None
        preset = plan.config.run.preset
        run = RunInfo(plan.run_id, me.pid, me.start_time, socket.gethostname(), plan.started_at, preset)
        self.reserve_summary()
        self.write("config.json", {"format_version": FORMAT_VERSION, "config": to_json(plan.config)})
        self.write("run.json", to_json(run))

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all. OSError leaves nothing behind."""
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            temporary.write_text(_text(data))
            temporary.replace(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def reserve_summary(self) -> None:
        """Take the space that `write_summary` needs: the disk may be full by then. OSError when there is none."""
        (self.path / RESERVED).write_bytes(bytes(SUMMARY_BYTES))

    def write_summary(self, data: Mapping[str, Any]) -> None:
        """`summary.json` into the space that is reserved, whole or not at all. OSError leaves nothing behind."""
        reserved, text = self.path / RESERVED, _text(data).encode()
        try:
            with reserved.open("r+b") as file:  # not truncated before it is written: its blocks are the reserve
                file.write(text)
                file.flush()
                file.truncate(len(text))
                os.fsync(file.fileno())
            reserved.replace(self.path / SUMMARY)
        except FileNotFoundError:  # somebody has tidied up
            self.write(SUMMARY, data)
        except OSError:
            with contextlib.suppress(OSError):
                reserved.unlink()
            raise

    def mark_ended(self, now: float) -> None:
        """The summary is written: whoever looks for a live run passes by, and another may go on here."""
        info = read_info(self.path)
        if info is not None:
            self.write("run.json", to_json(replace(info, ended_at=now)))

    def discard(self) -> None:
        """Nothing was started after all: remove what `create` made, and only if it made the directory."""
        with contextlib.suppress(OSError):
            (self.path / RESERVED).unlink()
        if self._created:
            shutil.rmtree(self.path, ignore_errors=True)


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def read_info(run_dir: Path) -> RunInfo | None:
    """`run.json` of a run directory; None when there is none or it cannot be read."""
    try:
        return from_json(RunInfo, json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_config(run_dir: Path) -> Config:
    """The configuration of a run as it was resolved. ConfigError names what is wrong."""
    path = run_dir / "config.json"
    try:
        data = json.loads(path.read_text())
        if data["format_version"] != FORMAT_VERSION:
            raise ConfigError(f"{path} has format version {data['format_version']}, this zmqrl reads {FORMAT_VERSION}")
        return from_json(Config, data["config"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no configuration of a run: {error}") from error
