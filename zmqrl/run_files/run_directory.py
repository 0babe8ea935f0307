"""The run directory: what is in it, and who may use it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from zmqrl.capacity import disk_error
from zmqrl.config.codec import from_json, object_of, to_json
from zmqrl.config.hosts import shortened
from zmqrl.config.kinds import flat, nested
from zmqrl.config.plan import INITIAL, RunPlan
from zmqrl.config.sections import Config
from zmqrl.config.webhook import without_secrets
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.make import place_of
from zmqrl.errors import ConfigError, FolderOfRuns, WireError
from zmqrl.messages.files import RunRecord, decode
from zmqrl.run_files.trained_env import KEY, stored_env
from zmqrl.run_files.trusted_places import keep_own
from zmqrl.run_files.undo import Undo
from zmqrl.supervision.process_table import ProcessId, identify, is_alive
from zmqrl.supervision.run_owner import OwnerState, RunOwner, owner_state
from zmqrl.types import EnvSpec

FORMAT_VERSION, IMPLICIT_STATE = 2, 1
"""Of `config.json`. Runs of version 1 with `env.recovery: exact` used `get_state` and `set_state` of envs with both."""
SUMMARY, RESERVED = "summary.json", ".summary.json.reserved"
SUMMARY_BYTES = 65_536
RUNS_NAMED = 5
EARLIER_IDS = 20
"""Attempts by whose run ids a run is found."""


class RunInfo(RunRecord, frozen=True):
    """`run.json`: which process drives the run; what `status` and `stop` find it by."""

    def has_id(self, run_id: str) -> bool:
        """Whether an attempt of the run has this id."""
        return run_id == self.run_id or run_id in self.earlier_ids

    @property
    def place(self) -> str:
        """Where the launcher is that cannot be seen from here."""
        here = self.host == socket.gethostname()
        return f"in another pid namespace of {self.host} (a container)" if here else f"on {self.host}"


def launcher_state(run_dir: Path, info: RunInfo, watch: bool = True) -> OwnerState:
    """What is known here of the launcher of a run: what every command decides by.

    Host names and pids do not show it: a container has pids of its own, and may have the name of its host.

    Args:
        run_dir: The run directory.
        info: Of the attempt; once another attempt has taken the directory over, this one has ended.
        watch: Wait for up to 3 s to see a launcher that is elsewhere.
    """
    now = read_info(run_dir) if info.ended_at is None else info
    if now is None or now.run_id != info.run_id or now.ended_at is not None:
        return OwnerState.ENDED
    state = owner_state(run_dir, info.run_id, watch)
    if state is not None:
        return state
    if now.host != socket.gethostname():
        return OwnerState.UNKNOWN
    return OwnerState.HERE if is_alive(ProcessId(now.pid, now.start_time)) else OwnerState.ENDED


def is_live(run_dir: Path, info: RunInfo) -> bool:
    """Whether the run continues, on this machine or another: not one that has taken its directory over."""
    return launcher_state(run_dir, info) in (OwnerState.HERE, OwnerState.ELSEWHERE)


def has_launcher_here(run_dir: Path, info: RunInfo) -> bool:
    """Whether the run continues, and this process sees its launcher: decided at once."""
    return launcher_state(run_dir, info, watch=False) is OwnerState.HERE


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

        Args:
            plan: Of the attempt.
            initial: Content of the file of `run.init_from`, where the plan has one.
            job: See `Orchestrator.job`.

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
        """As `DataStore.put_aside`; `discard` moves them back."""
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
        me = identify(os.getpid())
        assert me is not None
        preset, before = plan.config.run.preset, read_info(self.path) if plan.resume else None
        run = RunInfo(
            plan.run_id,
            me.pid,
            me.start_time,
            socket.gethostname(),
            plan.started_at,
            preset,
            lineage=plan.lineage.id,
            attempt=plan.lineage.attempt,
            job=job,
            in_thread=threading.current_thread() is not threading.main_thread(),
            earlier_ids=() if before is None else (*before.earlier_ids, before.run_id)[-EARLIER_IDS:],
        )
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


def read_info(run_dir: Path) -> RunInfo | None:
    """`run.json` of a run directory; None when there is none or it cannot be read."""
    try:
        return _info(run_dir)
    except (OSError, ValueError, WireError):
        return None


def is_run(path: Path) -> bool:
    """Whether a path is a run directory, also one with damaged files."""
    return (path / "config.json").exists() or (path / "run.json").exists()


def refuse_damaged_info(run_dir: Path) -> None:
    """Raise `ConfigError` where the `run.json` of a run directory cannot be read."""
    if not is_run(run_dir):
        return
    try:
        _info(run_dir)
    except (OSError, ValueError, WireError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        message = f"{run_dir / 'run.json'} cannot be read: {cause}; restore the file from a copy of the run"
        if (run_dir / "config.json").exists():
            message += f", or start a new run with its weights: --init-from {shlex.quote(str(run_dir))}"
        raise ConfigError(message) from error


def _info(run_dir: Path) -> RunInfo:
    content = (run_dir / "run.json").read_bytes()
    object_of(content)  # its errors are of the file, those of `decode` of a message
    return decode(RunInfo, content)


def stored_config(config: Config, env: EnvSpec | None = None) -> dict[str, Any]:
    """The content of `config.json`: what `read_config` and, of a run, `read_trained_env` read."""
    kept = flat(to_json(without_secrets(config)))
    trained = {} if env is None else {KEY: stored_env(env)}
    return {"format_version": FORMAT_VERSION, "config": kept, **trained}


def stored_format(run_dir: Path) -> int:
    """The format version of the `config.json` in `run_dir`; that of this zmqrl where there is none."""
    try:
        return msgspec.json.decode((run_dir / "config.json").read_bytes(), type=_StoredConfig).format_version
    except (OSError, msgspec.MsgspecError):
        return FORMAT_VERSION


def stored_place(run_dir: Path, config: Config) -> str:
    """Where the checkpoints of the run in `run_dir` are, as its last attempt left them."""
    info = read_info(run_dir)
    return place_of(config.store, run_dir, None if info is None else info.lineage)


def read_config(run_dir: Path, example: Callable[[str], str] = shlex.quote) -> Config:
    """The configuration of a run as it was resolved.

    Args:
        run_dir: The run directory.
        example: What the user types for one run; the error for the folder of several runs ends with it.

    Raises:
        FolderOfRuns: `run_dir` is the folder of several runs.
        ConfigError: There is none, or it cannot be read.
    """
    path = run_dir / "config.json"
    if not run_dir.exists():
        raise ConfigError("does not exist", key=(), value=f"run directory {run_dir}", is_subject=True)
    if not path.exists():
        refuse_folder_of_runs(run_dir, example)
        what = f"is not a run directory: {path} does not exist"
        raise ConfigError(what, key=(), value=str(run_dir), is_subject=True)
    try:
        return parse_config(path.read_bytes(), str(path))
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
            raise ConfigError(what, key=(), value=where, is_subject=True)
        return from_json(Config, nested(stored.config))
    except (ValueError, TypeError, RecursionError) as error:
        what, fix = f"is not the configuration of a run: {error}", "restore the file from a copy of the run"
        raise ConfigError(what, key=(), value=where, is_subject=True, fix=fix) from error


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
