"""Checkpoints in the memory of one process: for tests and for single-process tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, Saved
from zmqrl.errors import StoreError
from zmqrl.types import Version, Weights


class MemoryStore(DataStore):
    """Dictionaries with the rules of a directory. `path` only names it."""

    def __init__(self, path: str, keep: int) -> None:
        self.path = path
        self._keep = keep
        self._versions: dict[Version, bytes] = {}
        self._fulls: dict[Version, bytes] = {}
        self._best: tuple[Version, bytes, float] | None = None

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        content = tensors.dump(weights, meta)
        self._versions[version] = content
        return Saved(f"v{version}", len(content), hashlib.sha256(content).hexdigest())

    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        del deadline_s
        for version, content in self._versions.items():
            if f"v{version}" == key:
                if len(content) != nbytes or hashlib.sha256(content).hexdigest() != sha256:
                    raise StoreError(f"{key} in {self.path} does not match the digest of its notice")
                return content
        raise StoreError(f"{key} is not in {self.path}")

    def save_full(self, full: Full, durable: bool) -> int:
        del durable
        content = tensors.dump({**full.arrays, **full.rows}, {"full": json.dumps(full.meta)})
        self._fulls[full.version] = content
        return len(content)

    def newest_full(self) -> Full | None:
        if not self._fulls:
            return None
        version = max(self._fulls)
        arrays, metadata = tensors.parse(self._fulls[version])
        return Full(version, arrays, json.loads(metadata["full"]))

    def save_best(self, version: Version, content: bytes, score: float) -> None:
        self._best = (version, content, score)

    def best(self) -> tuple[Version, bytes, float] | None:
        return self._best

    def newest(self) -> tuple[Version, bytes] | None:
        if not self._versions:
            return None
        version = max(self._versions)
        return version, self._versions[version]

    def retire(self) -> None:
        for version in sorted(self._versions)[: -self._keep]:
            del self._versions[version]
        for version in sorted(self._fulls)[:-2]:
            del self._fulls[version]
