"""The run directory: what is in it, and who may use it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from zmqrl.capacity import disk_error
from zmqrl.config.codec import to_json
from zmqrl.config.plan import INITIAL, RunPlan
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.errors import ConfigError
from zmqrl.run_files.run_info import info_of, read_info
from zmqrl.run_files.stored_config import stored_config
from zmqrl.run_files.trusted_places import keep_own
from zmqrl.run_files.undo import Undo
from zmqrl.supervision.run_owner import RunOwner

SUMMARY, RESERVED = "summary.json", ".summary.json.reserved"
SUMMARY_BYTES = 65_536


def resume_command(run_dir: Path | str) -> str:
    """The command to continue a run; it takes hosts and all from there."""
    return f"zmqrl train --resume {shlex.quote(str(run_dir))}"


def default_path(name: str) -> Path:
    """`runs/<name>-<time>`."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextlib.contextmanager
def default_directory(name: str) -> Iterator[Path]:
    """`runs/<name>-<time>`, with a number behind it where another run has begun in this second.

    It is made, so that no other run takes it, and removed if the block leaves nothing in it. ConfigError: it cannot be
    made.
    """
    first = path = default_path(name)
    is_first_run = not path.parent.exists()
    try:
        files.make_directory(str(path.parent.absolute()))
        for number in itertools.count(2):
            with contextlib.suppress(FileExistsError):
                files.mkdir(str(path))
                break
            path = first.with_name(f"{first.name}-{number}")
        files.sync_directory(str(path.parent))
    except OSError as error:
        raise ConfigError(f"run directory {path} cannot be written: {disk_error(error, path)}") from error
    try:
        yield path
    finally:
        for made in (path, *([path.parent] if is_first_run else [])):
            with contextlib.suppress(OSError):
                made.rmdir()


class RunDirectory:
    """Paths of a run, and its writer."""

    def __init__(self, path: Path, owner: RunOwner | None = None, undo: Undo | None = None) -> None:
        """`owner`: this process, where it is the run's launcher; `undo`: of a directory that was there before it."""
        self.path = path
        self._owner, self._undo = owner, undo

    @classmethod
    def own(cls, plan: RunPlan) -> RunDirectory:
        """The directory, made where it is missing and owned until `release`; nothing else is written yet.

        One whose launcher has exited is taken over.

        Raises:
            ConfigError: A run is using it, or it cannot be written.
        """
        path = Path(plan.run_dir)
        try:
            undo = Undo(path) if path.exists() else None
            files.make_directory(str(path))
            return cls(path, RunOwner.acquire(path, plan.run_id), undo)
        except OSError as error:
            raise ConfigError(f"run directory {path} cannot be written: {disk_error(error, path)}") from error

    def begin(self, plan: RunPlan, initial: bytes | None = None, job: str | None = None) -> None:
        """Write what an attempt begins with. Once this returns, it survives a power cut.

        `initial`: content of the file of `run.init_from`, where the plan has one. `job`: see `Orchestrator.job`.

        Raises:
            ConfigError: It cannot be written; nothing is left.
        """
        try:
            if self._undo is not None:
                self._undo.begin()
            self._begin(plan, initial, job)
        except OSError as error:
            self.discard()
            raise ConfigError(f"run directory {self.path} cannot be written: {disk_error(error, self.path)}") from error

    @contextlib.contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Whatever is raised inside, the directory is then as before the start: see `discard`."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def put_aside(self, name: str, folder: str) -> None:
        """Move a file or folder to `folder` in the directory before the attempt begins; `discard` moves it back."""
        assert self._undo is not None, "a new directory has no results"
        self._undo.put_aside(name, folder)

    def put_store_aside(self, store: DataStore, folder: str) -> str | None:
        """Put the store aside as `DataStore.put_aside` does; `discard` moves the checkpoints back."""
        assert self._undo is not None, "a new directory has no results"
        return self._undo.put_store_aside(store, folder)

    @property
    def successor(self) -> str | None:
        """The run of another launcher that owns the directory now; None: this launcher still owns it."""
        try:
            return None if self._owner is None else self._owner.successor
        except OSError:
            return None

    def release(self) -> None:
        """Another launcher may take the directory at once. OSError: on another host it waits a little first."""
        if self._owner is not None:
            self._owner.release()

    def _begin(self, plan: RunPlan, initial: bytes | None, job: str | None) -> None:
        for folder in (self.path / "logs", self.path / "checkpoints"):
            with contextlib.suppress(FileExistsError):
                files.mkdir(str(folder))  # durable with the files below
        run = info_of(plan, job, read_info(self.path) if plan.resume else None)
        self.reserve_summary()
        if initial is not None:
            self._write(INITIAL, initial, durable=True)
        self.write("config.json", stored_config(plan.config, plan.env), durable=True)
        if not plan.resume:
            keep_own(self.path)
        self.write("run.json", to_json(run), durable=True)

    def write(self, name: str, data: Mapping[str, Any], durable: bool = False) -> None:
        """A JSON file, whole or not at all; with `durable` it survives a power cut once this returns.

        OSError leaves nothing behind.
        """
        self._write(name, _text(data).encode(), durable)

    def _write(self, name: str, content: bytes, durable: bool) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            files.replace(str(self.path / name), [(0, content)], str(temporary), durable)
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
        """The summary is written: the run no longer counts as live, and another may use the directory."""
        info = read_info(self.path)
        if info is not None:
            self.write("run.json", to_json(structs.replace(info, ended_at=now)), durable=True)

    def count_attempts(self, attempts: int) -> None:
        """The run has had so many attempts, of which `run.json` may name fewer: the next one has a higher number."""
        info = read_info(self.path)
        if info is not None and info.attempt < attempts:
            self.write("run.json", to_json(structs.replace(info, attempt=attempts)))

    def discard(self) -> None:
        """Undo a failed start: restore the directory, or remove it if this attempt created it.

        One that another launcher has taken over is left to it.
        """
        is_ours = self.successor is None
        with contextlib.suppress(OSError):
            self.release()
            (self.path / RESERVED).unlink()
        if is_ours and self._undo is not None:
            self._undo.undo()
        elif is_ours:
            shutil.rmtree(self.path, ignore_errors=True)


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
