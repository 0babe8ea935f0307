"""Copies of a run at a URL: made by the launcher during training, fetched by a resume or an evaluation elsewhere."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.plan import INITIAL, RunPlan
from zmqrl.data_stores.copies import copy_newest, fetch_object
from zmqrl.data_stores.directory import DirectoryConfig
from zmqrl.data_stores.make import kind_of
from zmqrl.data_stores.object import ObjectConfig
from zmqrl.data_stores.objects import Objects, check_writable
from zmqrl.errors import ConfigError, StoreError, StoreRefused, WireError
from zmqrl.launch.problem import Problem
from zmqrl.messages.files import RunRecord, decode

RECORDS = ("config.json", "run.json", "summary.json", "metrics.jsonl", INITIAL)
"""Files of the run directory that a resume and a plot need."""
AGAIN_S = 2.0
"""After a copy that failed."""
LOOK_S = 0.1


@dataclass(frozen=True)
class Target:
    """Where a run is copied to."""

    key: str
    """Of the configuration."""
    url: str
    checkpoints: Path | None
    """The directory that is copied with the records; None: the checkpoints of the run are at the URL."""


def target_of(plan: RunPlan) -> Target | None:
    """The target that `store` sets; None where the run is not copied."""
    config = kind_of(plan.config.store)[1]
    if isinstance(config, DirectoryConfig) and config.mirror is not None:
        return Target("store.mirror", f"{config.mirror.rstrip('/')}/{plan.lineage.id}", Path(plan.store_path))
    return Target("store.url", plan.store_path, None) if isinstance(config, ObjectConfig) else None


def check_mirror(config: Any) -> None:
    """Raise `ConfigError` when the service of `store.mirror` refuses. One that does not answer is waited for."""
    if isinstance(config, DirectoryConfig) and config.mirror is not None:
        try:
            check_writable("store.mirror", config.mirror, f".check-{secrets.token_hex(4)}")
        except StoreError:
            return  # the mirror reports it, and copies later


class UrlMirror:
    """A thread that copies the newest checkpoints and the records of a run. The newest wins; what fails is repeated."""

    def __init__(self, plan: RunPlan, target: Target, note: Callable[[Problem], None]) -> None:
        """`note`: takes a problem for the user, from the thread."""
        self._run_dir, self._target, self._note = Path(plan.run_dir), target, note
        self._every_s, self._attempt = plan.config.run.checkpoint_every_s, plan.lineage.attempt
        self._objects = Objects(target.url)
        self._copied: dict[str, str] = {}
        """Digest of each record as it was copied last."""
        self._failing_since: float | None = None
        self._was_refused = False
        """From the first copy on: this host may have no credentials, and the learner's may."""
        self._ended, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the copy is."""
        return self._target.url

    def end(self) -> None:
        """The run has ended and is summed up: what is new is copied once more."""
        self._ended.set()

    def is_complete(self, wait_s: float, is_interrupted: Callable[[], bool]) -> bool:
        """Whether all is there, once `end` was called; waits for it."""
        until = time.monotonic() + wait_s
        while self._thread.is_alive() and time.monotonic() < until and not is_interrupted():
            self._thread.join(LOOK_S)
        return not self._thread.is_alive() and self._failing_since is None

    def abandon(self) -> None:
        """Copy nothing more: the run belongs to another launcher."""
        self._abandoned.set()
        self._ended.set()

    def _run(self) -> None:
        while not self._abandoned.is_set():
            is_last = self._ended.is_set()
            is_complete = self._try()
            if is_last and (is_complete or self._was_refused):
                return
            (self._abandoned if is_last else self._ended).wait(self._every_s if is_complete else AGAIN_S)

    def _try(self) -> bool:
        try:
            self._copy_all()
        except (StoreError, OSError) as error:
            if self._failing_since is None:
                self._was_refused = not self._copied and isinstance(error, StoreRefused)
                self._failing_since = time.monotonic()
                self._report(f"the run is not copied: {error}", "the run continues, the copy is repeated")
            return False
        if self._failing_since is not None:
            failed_s = time.monotonic() - self._failing_since
            self._failing_since, self._was_refused = None, False
            self._report(f"the run was not copied for {failed_s:.1f} s", f"{self._target.url} is complete again")
        return True

    def _report(self, cause: str, action: str) -> None:
        self._note(Problem(self._target.key, cause, action))

    def _copy_all(self) -> None:
        """Listed each time: a service may have lost what it had."""
        there = self._objects.names()
        self._check_attempt()
        if self._target.checkpoints is not None:
            copy_newest(self._target.checkpoints, self._objects, there)
        for name, content in self._records():
            digest = hashlib.sha256(content).hexdigest()
            if name not in there or self._copied.get(name) != digest:
                self._objects.put(name, content)
                self._copied[name] = digest

    def _check_attempt(self) -> None:
        """StoreError when a later attempt of this run, on another machine, copies to the same place."""
        content = self._objects.get("run.json")
        try:
            later = content is not None and decode(RunRecord, content).attempt > self._attempt
        except WireError:
            return  # it is replaced
        if later:
            raise StoreError(f"{self._target.url} belongs to a later attempt of this run")

    def _records(self) -> Iterator[tuple[str, bytes]]:
        for name in RECORDS:
            try:
                yield name, (self._run_dir / name).read_bytes()
            except FileNotFoundError:
                continue


def fetch(url: str, run_dir: Path, to_resume: bool) -> None:
    """Fetch a run into a new directory.

    Args:
        url: `<store.mirror>/<lineage id>`, or `<store.url>/<lineage id>`.
        run_dir: It must not exist, or be empty.
        to_resume: With its full checkpoints; else what an evaluation needs.

    Raises:
        ConfigError: A run was not found, or the service does not answer. Nothing is left.
    """
    with _removed_unless_complete(run_dir):
        try:
            _fetch(Objects(url), run_dir, to_resume)
        except StoreError as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(f"{url} cannot be copied to {run_dir}: {error.strerror}") from error


@contextmanager
def _removed_unless_complete(run_dir: Path) -> Iterator[None]:
    was_there = run_dir.exists()
    try:
        yield
    except BaseException:
        for path in [*run_dir.glob("*")] if was_there else [run_dir]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _fetch(objects: Objects, run_dir: Path, to_resume: bool) -> None:
    names = objects.names()
    config = objects.get("config.json") if "run.json" in names else None
    if config is None:
        raise ConfigError(f"{objects.url} is not a copy of a run: config.json and run.json were not found there")
    stored, has_checkpoints = _in_run_directory(config, objects.url)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in RECORDS:
            fetch_object(objects, name, run_dir / name)
        elif has_checkpoints and name.endswith(".safetensors") and (to_resume or not name.startswith("full-")):
            fetch_object(objects, name, run_dir / "checkpoints" / name)
    (run_dir / "config.json").write_bytes(stored)


def _in_run_directory(content: bytes, url: str) -> tuple[bytes, bool]:
    """The configuration of a copy, whose checkpoints are in its run directory; whether they come with it."""
    try:
        data = json.loads(content)
        store = data["config"]["store"]
        if store["kind"] == "object":
            return content, False
        store["path"] = None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{url}/config.json is not the configuration of a run: {error}") from error
    return json.dumps(data, indent=2).encode(), True
