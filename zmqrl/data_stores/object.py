"""Checkpoints as objects below a URL: for async, and for reading what a mirror wrote."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Lineage
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, Saved
from zmqrl.data_stores.directory import SUPERSEDED_FOR_S, checkpoint_names
from zmqrl.data_stores.objects import Objects, check_url
from zmqrl.data_stores.owner import OWNER
from zmqrl.errors import ConfigError, StoreError
from zmqrl.types import Mode, Version, Weights

PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
BEST_KEPT = 2


@dataclass(frozen=True)
class ObjectConfig:
    """Checkpoints are objects of S3, GCS, Azure or HTTP. Only for async: sync writes too many; it takes `mirror`."""

    __pydantic_config__ = FORBID_UNKNOWN

    url: str
    """Such as `s3://bucket/runs`; checkpoints are in `<url>/<lineage id>`. Credentials are those of the host."""


class ObjectStore(DataStore):
    """An object is written whole or not at all, and a listing is complete: nothing that NFS needs is repeated here."""

    Config = ObjectConfig

    def __init__(self, place: str, keep: int, config: ObjectConfig | None = None) -> None:
        super().__init__(place, keep, config)
        self.path, self._keep = place, keep
        self._objects = Objects(place)
        self._versions: list[tuple[Version, float]] = []
        self._damaged: dict[str, str] = {}
        self._unreported: list[str] = []

    @classmethod
    def place(cls, config: ObjectConfig, run_dir: Path, lineage: str | None) -> str:
        url = config.url.rstrip("/")
        return url if lineage is None else f"{url}/{lineage}"

    @classmethod
    def check(cls, config: ObjectConfig, run_dir: Path) -> None:
        check_url("store.url", config.url)
        Objects(config.url).check_writable("store.url", f".check-{secrets.token_hex(4)}")

    @classmethod
    def check_mode(cls, config: ObjectConfig, mode: Mode) -> None:
        if mode != "async":
            raise ConfigError(
                f"store.kind: 'object': {mode} writes in every round, and would wait for {config.url}; "
                f"write store: {{kind: directory, mirror: {config.url}}}"
            )

    def leave_token(self, run_id: str) -> str:
        token = secrets.token_hex(16)
        self._objects.put(_token_name(run_id), token.encode())
        return token

    def sees_token(self, run_id: str, token: str) -> bool:
        try:
            return self._objects.get(_token_name(run_id)) == token.encode()
        except StoreError:
            return False

    def remove_token(self, run_id: str) -> None:
        self._objects.delete([_token_name(run_id)])

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        content = tensors.dump(weights, {**meta})
        key = _name("v", version)
        self._objects.put(key, content)
        self._versions = [(v, at) for v, at in self._versions if v != version]
        self._versions.append((version, time.monotonic()))
        return Saved(key, len(content), hashlib.sha256(content).hexdigest())

    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        end, pause_s = time.monotonic() + deadline_s, PAUSE_S
        while True:
            try:
                content = self._objects.get(key)
                if content is not None and len(content) == nbytes and hashlib.sha256(content).hexdigest() == sha256:
                    return content
                cause = "no such object" if content is None else "size or SHA-256 digest differ"
            except StoreError as error:
                cause = str(error)
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise StoreError(f"{key} not read in {self.path} within {deadline_s:g} s: {cause}")
            time.sleep(min(pause_s, left_s))
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def save_full(self, full: Full, durable: bool) -> int:
        del durable  # what was put is durable
        metadata = {"full": json.dumps(full.meta), "version": str(full.version)}
        content = tensors.dump({**full.arrays, **full.rows}, metadata)
        self._objects.put(_name("full-", full.version), content)
        return len(content)

    def newest_full(self) -> Full | None:
        before = len(self._unreported)
        for version, content in self._verified("full-"):
            arrays, metadata = tensors.parse(content)
            return Full(version, arrays, json.loads(metadata["full"]))
        damaged = self._unreported[before:]
        if len(damaged) > 1:
            raise StoreError(f"no full checkpoint can be loaded, the run cannot continue: {damaged[0]}")
        return None

    def passed_over(self) -> list[str]:
        damaged, self._unreported = self._unreported, []
        return list(dict.fromkeys(damaged))

    def damaged(self) -> Mapping[str, str]:
        return self._damaged

    def save_best(self, version: Version, content: bytes, score: float) -> None:
        arrays, metadata = tensors.parse(content)
        self._objects.put(_name("best-", version), tensors.dump(arrays, {**metadata, "score": repr(score)}))
        self._objects.delete(list(checkpoint_names(self._objects.names(), "best-"))[:-BEST_KEPT])

    def best(self) -> tuple[Version, bytes, float] | None:
        for version, content in self._verified("best-"):
            return version, content, float(tensors.parse(content)[1]["score"])
        return None

    def newest(self) -> tuple[Version, bytes] | None:
        return next(self._verified("v"), None)

    def owner(self) -> Lineage | None:
        content = self._objects.get(OWNER)
        try:
            return None if content is None else from_json(Lineage, json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{self.path}/{OWNER} cannot be read: {error}; delete it if the run is not active"
            ) from error

    def set_owner(self, owner: Lineage) -> None:
        self._objects.put(OWNER, json.dumps(to_json(owner), indent=2).encode())

    def retire(self) -> None:
        now = time.monotonic()
        old = [v for v, at in self._versions[: -self._keep] if now - at >= SUPERSEDED_FOR_S]
        if not old:
            return
        self._versions = [(v, at) for v, at in self._versions if v not in old]
        self._retire_named()

    def finish(self) -> None:
        self._retire_named()

    def _retire_named(self) -> None:
        names = self._objects.names()
        self._objects.delete(
            [*list(checkpoint_names(names, "v"))[: -self._keep], *list(checkpoint_names(names, "full-"))[:-2]]
        )

    def _verified(self, kind: str) -> Iterator[tuple[Version, bytes]]:
        """Those that verify, newest first; the others are recorded."""
        for name, version in reversed(checkpoint_names(self._objects.names(), kind).items()):
            content = self._objects.get(name)
            if content is None:
                continue  # retired between the listing and the reading
            try:
                tensors.verify(content)
            except StoreError as error:
                self._damaged[name] = str(error)
                if kind != "v":
                    self._unreported.append(f"{name} in {self.path}: {error}")
                continue
            yield version, content


def _name(kind: str, version: Version) -> str:
    return f"{kind}{version}.safetensors"


def _token_name(run_id: str) -> str:
    return f".token-{run_id}"
