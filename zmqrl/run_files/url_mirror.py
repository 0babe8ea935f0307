"""Copies of a run at a URL: made by the launcher during training, fetched by a resume or an evaluation elsewhere."""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zmqrl.config.plan import INITIAL, RunPlan
from zmqrl.config.sections import StoreSection
from zmqrl.data_stores.checkpoints import COPIED
from zmqrl.data_stores.copies import NAMED, copy_newest, fetch_newest, fetch_object, pause_s
from zmqrl.data_stores.directory import DirectoryConfig
from zmqrl.data_stores.make import kind_of
from zmqrl.data_stores.object import ObjectConfig, ObjectStore
from zmqrl.data_stores.objects import Objects, check_url, check_writable
from zmqrl.data_stores.owner import check_owner
from zmqrl.errors import ConfigError, StoreError, StoreRefused
from zmqrl.metrics.groups import METRICS
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.stored_config import parse_config
from zmqrl.run_files.trust import allowed
from zmqrl.views.problem import Problem

RESULTS = ("summary.json", METRICS, INITIAL)
RECORDS = ("config.json", "run.json", *RESULTS)
"""Files of the run directory that a resume and a plot need."""
GROWN = 1.05
"""Least growth of the metrics for a copy during the run: it sends the whole file, which grows as long as the run."""
AGAIN_S = 2.0
"""After a copy that failed."""
REFUSALS = 2
"""After so many the last copy is not waited for: a service that starts again refuses for a moment."""
LOOK_S = 0.1


class Content(NamedTuple):
    """What a record was when it was copied: a change of the content changes one of these."""

    inode: int
    nbytes: int
    modified_ns: int


@dataclass(frozen=True)
class MirrorTarget:
    """Where a run is copied to."""

    key: str
    """Key of the configuration that names the target."""
    url: str
    checkpoints: Path | None
    """The directory that is copied with the records; None: the checkpoints of the run are at the URL."""


def is_copied(store: StoreSection) -> bool:
    """Whether the launcher copies the run to a URL."""
    config = kind_of(store)[1]
    return isinstance(config, ObjectConfig) or (isinstance(config, DirectoryConfig) and config.mirror is not None)


def target_of(plan: RunPlan) -> MirrorTarget | None:
    """The target that `store` sets; None where the run is not copied."""
    config = kind_of(plan.config.store)[1]
    if isinstance(config, DirectoryConfig) and config.mirror is not None:
        return MirrorTarget("store.mirror", f"{config.mirror.rstrip('/')}/{plan.lineage.id}", Path(plan.store_path))
    return MirrorTarget("store.url", plan.store_path, None) if isinstance(config, ObjectConfig) else None


def check_mirror(config: Any) -> None:
    """Raise `ConfigError` when the service of `store.mirror` refuses. One that does not answer is waited for."""
    if isinstance(config, DirectoryConfig) and config.mirror is not None:
        try:
            check_writable("store.mirror", config.mirror, f".check-{secrets.token_hex(4)}")
        except StoreError:
            return  # the mirror reports it, and copies later


def check_mirror_owner(plan: RunPlan) -> None:
    """Raise `ConfigError` when the copy at `store.mirror` belongs to an attempt that has gone further elsewhere.

    A service that does not answer is waited for: `UrlMirror` checks again.
    """
    target = target_of(plan)
    if target is None or target.checkpoints is None:
        return
    try:
        owner = ObjectStore(target.url, 1).owner()
    except StoreError:
        return
    check_owner(target.key, target.url, owner, plan.lineage)


class UrlMirror:
    """A thread that copies the newest checkpoints and the records of a run; what fails is repeated.

    Of several attempts at one URL the last one copies, and of several with one number the last that began: the others
    read the owner record there and end.
    """

    def __init__(self, plan: RunPlan, target: MirrorTarget, note: Callable[[Problem], None]) -> None:
        """`note`: takes a problem for the user, from the thread."""
        self._run_dir, self._target, self._note = Path(plan.run_dir), target, note
        self._every_s, self._lineage = plan.config.run.checkpoint_every_s, plan.lineage
        self._objects, self._owned = Objects(target.url), ObjectStore(target.url, 1)
        self._copied: dict[str, Content] = {}
        """Each record as it was copied last."""
        self._same: set[str] = set()
        """Checkpoints there that are known to be those of this attempt."""
        self._failing_since: float | None = None
        self._reported: set[type[Exception]] = set()
        self._missing: list[str] = []
        """Kinds that the last copy lacks."""
        self._refusals = 0
        """Refusals in a row before anything was copied: this host may have no credentials, and the learner's may."""
        self._ended, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the copy is."""
        return self._target.url

    @property
    def content(self) -> str:
        """What is copied."""
        return f"the {'records' if self._target.checkpoints is None else 'newest checkpoints and records'} of the run"

    @property
    def is_alive(self) -> bool:
        """Whether it still copies, or tries to."""
        return self._thread.is_alive()

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
        """Copy nothing more: the run belongs to another launcher, or the wait for the copy has ended."""
        self._abandoned.set()
        self._ended.set()

    def _run(self) -> None:
        took_s = 0.0
        while not self._abandoned.is_set():
            is_last, begun = self._ended.is_set(), time.monotonic()
            is_complete = self._try(is_last)
            if is_last and (is_complete or self._refusals >= REFUSALS):
                return
            before_s, took_s = took_s, time.monotonic() - begun
            # The lesser of two: one copy may have waited for the service, and used little of the connection.
            wait_s = pause_s(self._every_s, min(before_s, took_s)) if is_complete else AGAIN_S
            (self._abandoned if is_last else self._ended).wait(wait_s)

    def _try(self, is_last: bool) -> bool:
        try:
            self._copy_all(is_last)
        except ConfigError as error:
            self._fail(error, "the run continues without a copy")
            self.abandon()
            return False
        except (StoreError, OSError) as error:
            self._refusals = self._refusals + 1 if not self._copied and isinstance(error, StoreRefused) else 0
            self._fail(error, "the run continues, the copy is repeated")
            return False
        if self._failing_since is not None:
            failed_s = time.monotonic() - self._failing_since
            self._failing_since, self._refusals = None, 0
            self._reported.clear()
            self._report(f"the run was not copied for {failed_s:.1f} s", f"{self._target.url} is complete again")
        return True

    def _fail(self, error: Exception, action: str) -> None:
        """Report the first error of each class since the last copy: an outage may become a refusal."""
        self._failing_since = self._failing_since or time.monotonic()
        if type(error) not in self._reported:
            self._reported.add(type(error))
            self._report(f"the run is not copied: {error.what if isinstance(error, ConfigError) else error}", action)

    def _report(self, cause: str, action: str) -> None:
        self._note(Problem(self._target.key, cause, action))

    def _copy_all(self, is_last: bool) -> None:
        """Listed each time: a service may have lost what it had."""
        there = self._objects.names()
        self._own()
        if self._target.checkpoints is not None:
            self._report_missing(copy_newest(self._target.checkpoints, self._objects, there, self._same))
        for name in RECORDS:
            content = _content(self._run_dir / name)
            if content is not None and (name not in there or self._is_due(name, content, is_last)):
                self._objects.put(name, self._run_dir / name)
                self._copied[name] = content

    def _is_due(self, name: str, content: Content, is_last: bool) -> bool:
        copied = self._copied.get(name)
        if copied is None or is_last or name != METRICS:
            return content != copied
        return content.nbytes >= GROWN * copied.nbytes

    def _report_missing(self, missing: list[str]) -> None:
        """Once per kind until one of it is copied."""
        for kind in missing:
            if kind not in self._missing:
                cause = f"no {NAMED[kind]} in {self._target.checkpoints} could be copied"
                self._report(f"{cause}: damaged, or retired meanwhile", "the run continues, the copy is repeated")
        self._missing = missing

    def _own(self) -> None:
        """Each time, as another attempt may have begun. ConfigError when it owns the copy."""
        owner = self._owned.owner()
        if owner != self._lineage:
            check_owner(self._target.key, self._target.url, owner, self._lineage)
            self._owned.set_owner(self._lineage)


def _content(path: Path) -> Content | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return Content(found.st_ino, found.st_size, found.st_mtime_ns)


def fetch(url: str, run_dir: Path, to_resume: bool) -> None:
    """Fetch the run at `<store.mirror>/<lineage id>`, or `<store.url>/<lineage id>`, into a new or empty directory.

    `to_resume`: with its full checkpoints; else what an evaluation needs.

    Raises:
        ConfigError: A run was not found, or the service does not answer. Nothing is left.
    """
    check_url("--resume" if to_resume else "eval", url)
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
    config, run = objects.get("config.json"), objects.get("run.json")
    if config is None or run is None:
        raise ConfigError(f"{objects.url} is not a copy of a run: config.json and run.json were not found there")
    owner = ObjectStore(objects.url, 1).owner() if to_resume else None
    stored, has_checkpoints = _in_run_directory(config, objects.url, to_resume)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    if has_checkpoints:
        kinds = [kind for kind in COPIED if to_resume or kind != "full-"]
        fetch_newest(objects, kinds, run_dir / "checkpoints")
    for name in RESULTS:
        fetch_object(objects, name, run_dir / name)
    # Last, and in this order: with them a directory is a run that can be resumed, and that has its lineage.
    (run_dir / "run.json").write_bytes(run)
    if owner is not None:  # its machine may have been lost before it copied `run.json`
        RunDirectory(run_dir).count_attempts(owner.attempt)
    (run_dir / "config.json").write_bytes(stored)


def _in_run_directory(content: bytes, url: str, to_resume: bool) -> tuple[bytes, bool]:
    """The configuration of a copy, whose checkpoints are in its run directory; whether they come with it."""
    config = allowed(parse_config(content, f"{url}/config.json"), url, to_resume=to_resume)
    data, has_checkpoints = json.loads(content), config.store.kind != "object"
    data["config"] |= {"on_end": config.on_end, "webhook": config.webhook}
    if has_checkpoints:
        data["config"]["store"]["path"] = None
    return json.dumps(data, indent=2).encode(), has_checkpoints
