"""Checkpoints as files in one directory, on local disk and on NFS alike.

Names: `v<incarnation>-<n>.safetensors`, `kept-...`, `full-...`, `best-...`. On NFS a name may be cached as absent for
tens of seconds and a file may go stale while it is open, so a reader opens once, reads to the end, verifies, and on
any failure lists the directory (which refreshes the client's cache) and tries again until its deadline.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.capacity import disk_error
from zmqrl.config.paths import expanded
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.data_stores import files, tensors
from zmqrl.data_stores.base import Full, Saved
from zmqrl.data_stores.checkpoints import FileDataStore, checkpoint_names, in_order
from zmqrl.data_stores.owner import read_owner, write_owner
from zmqrl.data_stores.retention import FullRetention
from zmqrl.errors import ConfigError, StoreError
from zmqrl.types import ModeName, Version, Weights

SUPERSEDED_FOR_S = 2.0
"""A version is deleted no sooner than this after a newer one: its readers have long finished."""
SPARES = 2
"""Retired files that are kept aside, to be written again under a new name; never one that was durable."""
STALE_TEMPORARY_S = 60.0
TRANSIENT_S = 5.0
"""How long a file that is there may not be readable."""
RETRIED = frozenset({errno.ENOENT, errno.ESTALE, errno.EIO})
FIX = "see store.path"
_LEARNERS = re.compile(r"\.(v|kept-|full-)\d+-\d+\.safetensors\.(\w+)\.tmp")
"""Hidden files of a learner, and which process wrote them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DirectoryConfig:
    """Checkpoints are files of one directory, on local disk or NFS."""

    __pydantic_config__ = FORBID_UNKNOWN

    path: str | None = None
    """null: `<run-dir>/checkpoints`; else checkpoints are in `<path>/<lineage id>`, and runs may share it."""
    mirror: str | None = None
    """URL such as `s3://bucket/runs`: the newest checkpoints and the records of the run are copied to
    `<mirror>/<lineage id>` during the run (stores.md)."""


IN_RUN_DIRECTORY = DirectoryConfig()


class DirectoryStore(FileDataStore):
    """One directory; made on the first write. Every write is a temporary file in it, then a rename."""

    Config = DirectoryConfig

    def __init__(self, place: str, keep: int, config: DirectoryConfig = IN_RUN_DIRECTORY) -> None:
        super().__init__(place, keep, config)
        self.path = os.path.abspath(os.path.expanduser(place))
        self._made = False
        self._is_cleaned = False
        self._versions: deque[tuple[Version, float, bool]] = deque()
        """When each was written, and whether by this process."""
        self._fulls = FullRetention()
        self._spares: list[str] = []

    @classmethod
    def place(cls, config: DirectoryConfig, run_dir: Path, lineage: str | None) -> str:
        if config.path is None:
            return str(run_dir / "checkpoints")
        root = expanded(config.path, "store.path").absolute()
        return str(root if lineage is None else root / lineage)

    @classmethod
    def is_shared(cls, config: DirectoryConfig) -> bool:
        return config.path is not None

    @classmethod
    def check_mode(cls, config: DirectoryConfig, mode: ModeName) -> None:
        path = config.path if isinstance(config, DirectoryConfig) else None  # a subclass may have other keys
        if path is not None and "://" in path:
            fix = f"to copy the run to a URL while it trains, write store: {{mirror: {path}}}"
            raise ConfigError("expected a directory", key=("store", "path"), value=repr(path), fix=fix)

    @classmethod
    def check(cls, config: DirectoryConfig, run_dir: Path) -> None:
        files.check_writable("store.path", Path(cls.place(config, run_dir, None)))

    def is_visible(self) -> bool:
        """`store.path` may be another directory on the learner's host; the name of the lineage in it decides."""
        return os.path.isdir(self.path)

    def leave_token(self, run_id: str) -> str:
        token = secrets.token_hex(16)
        temporary = Path(self.path, f".token-{run_id}.{os.getpid()}.tmp")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(token, encoding="utf-8")
            temporary.rename(self._token(run_id))
        except OSError as error:
            raise StoreError(
                "cannot be written", place=self.path, cause=disk_error(error, self.path), fix=FIX
            ) from error
        return token

    def sees_token(self, run_id: str, token: str) -> bool:
        path = self._token(run_id)
        try:  # listed first: NFS remembers that a name was absent
            return path.name in os.listdir(self.path) and path.read_text(encoding="utf-8") == token
        except OSError:
            return False

    def remove_token(self, run_id: str) -> None:
        self._token(run_id).unlink(missing_ok=True)

    def _token(self, run_id: str) -> Path:
        return Path(self.path, f".token-{run_id}")

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        content = tensors.dump(weights, meta)
        key, _ = self._write(f"v{version}", [(0, content)], durable=False)
        if self._versions and self._versions[-1][0] == version:  # written again: else it would count twice
            self._versions.pop()
        self._versions.append((version, time.monotonic(), True))
        return Saved(key, len(content), hashlib.sha256(content).hexdigest())

    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        end, pause_s = time.monotonic() + deadline_s, 0.002
        while True:
            try:
                return self._read_once(key, nbytes, sha256)
            except StoreError as error:
                cause: Exception = error
            except OSError as error:
                if error.errno not in RETRIED:
                    raise StoreError("cannot be read", name=key, place=self.path, cause=str(error)) from error
                cause = error
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise StoreError(
                    f"not read within {deadline_s:g} s", name=key, place=self.path, cause=str(cause)
                ) from cause
            time.sleep(min(pause_s, left_s))
            pause_s = min(0.5, pause_s * 2)
            with contextlib.suppress(StoreError):
                self._names()

    def save_full(self, full: Full, durable: bool) -> int:
        metadata = {"full": json.dumps(full.meta), "version": str(full.version)}
        pieces = tensors.pieces({**full.arrays, **full.rows}, metadata)
        _, nbytes = self._write(f"full-{full.version}", pieces, durable)
        self._fulls.written(full.version, durable)
        return nbytes

    def sync_full(self, version: Version) -> None:
        key = f"full-{version}.safetensors"
        try:
            files.sync_file(self._path(key))
            files.sync_directory(self.path)
        except OSError as error:
            raise StoreError(
                "cannot be synced to disk", name=key, place=self.path, cause=disk_error(error, self.path), fix=FIX
            ) from error
        self._fulls.synced(version)

    def save_best(self, version: Version, content: bytes, score: float) -> None:
        before = [name for name, v in checkpoint_names(self._names(), "best-").items() if v != version]
        arrays, metadata = tensors.parse(content)
        pieces = tensors.pieces(arrays, {**metadata, "score": repr(score)})
        self._write(f"best-{version}", pieces, durable=True)
        for name in before[:-1]:
            self._delete(name)

    def keep(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> None:
        self._write(f"kept-{version}", [(0, tensors.dump(weights, meta))], durable=True)

    def owner(self) -> Lineage | None:
        return read_owner(self.path)

    def set_owner(self, owner: Lineage) -> None:
        write_owner(self.path, owner)

    def retire(self) -> None:
        self._retire_all(SUPERSEDED_FOR_S)

    def finish(self) -> None:
        self._is_cleaned = False
        self._retire_all(0.0)
        with contextlib.suppress(OSError):
            for name in [name for name in os.listdir(self.path) if _LEARNERS.fullmatch(name)]:
                self._delete(name)

    def put_aside(self, folder: str) -> str | None:
        names = in_order(self._names())
        if not names:
            return None
        target = os.path.join(self.path, folder)
        try:
            files.make_directory(target)
            for name in names:
                files.rename(self._path(name), os.path.join(target, name))
            files.sync_directory(target)
            files.sync_directory(self.path)
        except OSError as error:
            raise StoreError(
                f"cannot be moved to {folder}", name="checkpoints", place=self.path, cause=str(error)
            ) from error
        return target

    def put_back(self, folder: str) -> None:
        target = os.path.join(self.path, folder)
        try:
            for name in os.listdir(target):
                files.rename(os.path.join(target, name), self._path(name))
            os.rmdir(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError("cannot be moved back", name="checkpoints", place=target, cause=str(error)) from error

    def _retire_all(self, superseded_for_s: float) -> None:
        if not self._is_cleaned:
            with contextlib.suppress(OSError, StoreError):  # next time
                self._clean()
        now = time.monotonic()
        # The one after it is what superseded the oldest.
        while len(self._versions) > self._keep and now - self._versions[1][1] >= superseded_for_s:
            version, _, own = self._versions.popleft()
            self._retire(f"v{version}.safetensors", own)
        for version in self._fulls.superseded():
            self._retire(f"full-{version}.safetensors", self._fulls.may_recycle(version))
            self._fulls.drop(version)

    def _retire(self, name: str, may_recycle: bool) -> None:
        """Delete, or keep aside: making and deleting files costs several times what writing them does."""
        spare = f".{name}.spare.tmp"
        if not may_recycle or len(self._spares) >= SPARES:
            self._delete(name)
            return
        with contextlib.suppress(OSError):
            files.rename(self._path(name), self._path(spare))
            self._spares.append(spare)

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _write(self, stem: str, pieces: Iterable[tuple[int, files.Buffer]], durable: bool) -> tuple[str, int]:
        """Write under a temporary name, then rename; returns the key and the size in bytes."""
        key = f"{stem}.safetensors"
        temporary = f".{key}.{os.getpid()}.tmp"
        if not durable:  # else a spare's old name, if the disk still has it, would hold the new content
            with contextlib.suppress(IndexError):  # FULL may be written in a thread of its own
                temporary = self._spares.pop()
        try:
            if not self._made:
                files.make_directory(self.path)
                self._made = True
            nbytes = files.replace(self._path(key), pieces, self._path(temporary), durable)
        except OSError as error:
            self._delete(temporary)
            raise StoreError(
                "cannot be written", name=key, place=self.path, cause=disk_error(error, self.path), fix=FIX
            ) from error
        self._bad.discard(key)
        self._damaged.pop(key, None)
        return key, nbytes

    def _read_once(self, key: str, nbytes: int, sha256: str) -> bytes:
        content = self._content(key)
        if len(content) != nbytes:
            raise StoreError(f"the file has {len(content)} bytes, expected {nbytes}")
        if hashlib.sha256(content).hexdigest() != sha256:
            raise StoreError(f"the SHA-256 digest is not {sha256[:12]}...")
        return content

    def _content(self, name: str) -> bytes:
        if os.path.basename(name) != name:
            raise StoreError("is not a key of a store", name=repr(name))
        path = self._path(name)
        while True:
            with open(path, "rb") as file:
                content = file.read()
                if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
                    return content  # else it was retired, and maybe written again as another version, while it was read

    def _read_whole(self, name: str) -> bytes | None:
        """The content, with patience for what a network file system gets over."""
        end, pause_s = time.monotonic() + TRANSIENT_S, 0.01
        while True:
            try:
                return self._content(name)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in RETRIED or time.monotonic() >= end:
                    raise
            time.sleep(pause_s)
            pause_s = min(0.5, pause_s * 2)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError("cannot be read", place=self.path, cause=str(error), fix=FIX) from error

    def _clean(self) -> None:
        """Take what an earlier process of this run left into retention; by the writer, at its begin and at its end."""
        now = time.monotonic()
        own = {version for version, _, _ in self._versions}
        names = os.listdir(self.path)
        self._is_cleaned = True
        for name in in_order(names):
            if name in self._bad and name.startswith(("v", "full-")):
                self._delete(name)  # else it would take the place of one that can be loaded
        left = [name for name in names if name not in self._bad]
        older = [(v, now, False) for v in checkpoint_names(left, "v").values() if v not in own]
        self._versions.extendleft(reversed(older))
        self._fulls.found(checkpoint_names(left, "full-").values())
        for name in names:
            if name.startswith(".") and name.endswith(".tmp"):
                self._clean_temporary(name)

    def _clean_temporary(self, name: str) -> None:
        """A learner's are those of one that has died, since there is one; the evaluator may be writing its own."""
        learners = _LEARNERS.fullmatch(name)
        try:
            if learners is None:
                if time.time() - os.stat(self._path(name)).st_mtime > STALE_TEMPORARY_S:
                    self._delete(name)
            elif name not in self._spares and learners[2] != str(os.getpid()):
                self._delete(name)
        except OSError:
            return  # gone, or not to be seen now

    def _delete(self, name: str) -> None:
        try:
            files.unlink(self._path(name))
        except OSError as error:
            if error.errno not in RETRIED and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                _log.warning("%s in %s cannot be deleted: %s", name, self.path, error)
