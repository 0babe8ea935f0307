"""Checkpoints as objects below a URL: for async, and for reading what a mirror wrote."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.data_stores import directory, tensors
from zmqrl.data_stores.base import Full, Saved
from zmqrl.data_stores.checkpoints import FileDataStore, checkpoint_names, in_order
from zmqrl.data_stores.objects import CHECK_S, Objects, check_url, check_writable
from zmqrl.data_stores.owner import DELETE_OWNER, OWNER
from zmqrl.errors import ConfigError, StoreError, StoreRefused
from zmqrl.types import MODES, ModeName, Version, Weights

PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
FULLS_KEPT, BEST_KEPT = 2, 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObjectConfig:
    """Checkpoints are objects of S3, GCS, Azure or HTTP (stores.md). Only for async; other modes use `mirror`."""

    __pydantic_config__ = FORBID_UNKNOWN

    url: str
    """Such as `s3://bucket/runs`; checkpoints are in `<url>/<lineage id>`. Credentials are those of the host."""


class ObjectStore(FileDataStore):
    """An object is written whole or not at all, and a listing is complete: nothing that NFS needs is repeated here."""

    Config = ObjectConfig
    place_key = "store.url"

    def __init__(self, place: str, keep: int, config: ObjectConfig | None = None) -> None:
        super().__init__(place, keep, config)
        self._objects, self._quick = Objects(place), Objects(place, CHECK_S)
        """The agents of hosts read with the second: they have other work, and a notice comes again."""
        self._written: dict[str, float] = {}
        """When each version and FULL was written that is not retired; of an earlier process: when it was found.

        One thread may write a FULL while another thread retires: single operations, each of them atomic.
        """
        self._is_cleaned = False

    @classmethod
    def place(cls, config: ObjectConfig, run_dir: Path, lineage: str | None) -> str:
        url = config.url.rstrip("/")
        return url if lineage is None else f"{url}/{lineage}"

    @classmethod
    def check(cls, config: ObjectConfig, run_dir: Path) -> None:
        try:
            check_writable("store.url", config.url, f".check-{secrets.token_hex(4)}")
        except StoreError as error:
            raise ConfigError(
                str(error), key=("store", "url"), fix="the object store must be reachable when a run starts"
            ) from error

    @classmethod
    def check_mode(cls, config: ObjectConfig, mode: ModeName) -> None:
        check_url("store.url", config.url)  # also where the learner is on another host, which has the other checks
        if MODES[mode].deterministic:
            what = f"mode {mode} writes a checkpoint in every round and would wait for {config.url} each time"
            fix = f"write store: {{kind: directory, mirror: {config.url}}}"
            raise ConfigError(what, key=("store", "kind"), value="'object'", fix=fix)

    def is_visible(self) -> bool:
        """The credentials may be on the learner's host alone."""
        try:
            self._quick.get(OWNER)
        except StoreRefused:
            return False
        except StoreError:
            return True
        return True

    def leave_token(self, run_id: str) -> str:
        token = secrets.token_hex(16)
        self._objects.put(_token_name(run_id), token.encode())
        return token

    def sees_token(self, run_id: str, token: str) -> bool:
        try:
            return self._quick.get(_token_name(run_id)) == token.encode()
        except StoreError:
            return False

    def remove_token(self, run_id: str) -> None:
        try:
            self._quick.delete([_token_name(run_id)])
        except StoreError as error:
            _log.warning("%s", error)

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        content = tensors.dump(weights, {**meta})
        key = _name("v", version)
        self._objects.put(key, content)
        self._written[key] = time.monotonic()
        return Saved(key, len(content), hashlib.sha256(content).hexdigest())

    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        end, pause_s = time.monotonic() + deadline_s, PAUSE_S
        while True:
            try:
                content = self._quick.get(key)
                if content is not None and len(content) == nbytes and hashlib.sha256(content).hexdigest() == sha256:
                    return content
                cause = "no such object" if content is None else "size or SHA-256 digest differ"
            except StoreError as error:
                cause = str(error)
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise StoreError(f"not read within {deadline_s:g} s", name=key, place=self.path, cause=cause)
            time.sleep(min(pause_s, left_s))
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def save_full(self, full: Full, durable: bool) -> int:
        del durable  # what was put is durable
        metadata = {"full": json.dumps(full.meta), "version": str(full.version)}
        content = tensors.dump({**full.arrays, **full.rows}, metadata)
        key = _name("full-", full.version)
        self._objects.put(key, content)
        self._written[key] = time.monotonic()
        return len(content)

    def save_best(self, version: Version, content: bytes, score: float) -> None:
        arrays, metadata = tensors.parse(content)
        self._objects.put(_name("best-", version), tensors.dump(arrays, {**metadata, "score": repr(score)}))
        self._objects.delete(list(checkpoint_names(self._objects.names(), "best-"))[:-BEST_KEPT])

    def keep(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> None:
        self._objects.put(_name("kept-", version), tensors.dump(weights, {**meta}))

    def owner(self) -> Lineage | None:
        content = self._objects.get(OWNER)
        try:
            return None if content is None else from_json(Lineage, json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(
                "cannot be read", name=OWNER, place=self.path, cause=str(error), fix=DELETE_OWNER
            ) from error

    def set_owner(self, owner: Lineage) -> None:
        self._objects.put(OWNER, json.dumps(to_json(owner), indent=2).encode())

    def retire(self) -> None:
        self._retire_all(directory.SUPERSEDED_FOR_S)

    def finish(self) -> None:
        self._retire_all(0.0)

    def put_aside(self, folder: str) -> str | None:
        moved = in_order(self._objects.names())
        for name in moved:
            self._objects.move(name, f"{folder}/{name}")
        return f"{self.path}/{folder}" if moved else None

    def put_back(self, folder: str) -> None:
        aside = Objects(f"{self.path}/{folder}")
        for name in aside.names():
            self._objects.move(f"{folder}/{name}", name)

    def _retire_all(self, superseded_for_s: float) -> None:
        try:
            if not self._is_cleaned:
                self._clean()
            self._delete(self._superseded(time.monotonic() - superseded_for_s))
        except StoreError as error:
            _log.warning("checkpoints are deleted later, or stay: %s", error)

    def _clean(self) -> None:
        """Take what an earlier process of this run left into retention."""
        names = self._objects.names()
        damaged = [name for name in names if name in self._damaged and not name.startswith("best-")]
        self._objects.delete(damaged)  # else they would take the place of those that can be loaded
        for name in set(names) - set(damaged):
            self._written.setdefault(name, time.monotonic())
        self._is_cleaned = True

    def _superseded(self, since: float) -> list[str]:
        """Names that retention no longer keeps; the one after each was written at `since` or before."""
        found = []
        for kind, most in (("v", self._keep), ("full-", FULLS_KEPT)):
            names = list(checkpoint_names(list(self._written), kind))
            pairs = list(pairwise(names))[: max(0, len(names) - most)]
            found += [name for name, after in pairs if self._written[after] <= since]
        return found

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._objects.delete([name])
            del self._written[name]

    def _names(self) -> list[str]:
        return self._objects.names()

    def _read_whole(self, name: str) -> bytes | None:
        return self._objects.get(name)


def _name(kind: str, version: Version) -> str:
    return f"{kind}{version}.safetensors"


def _token_name(run_id: str) -> str:
    return f".token-{run_id}"
