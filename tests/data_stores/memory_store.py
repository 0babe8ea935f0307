"""Checkpoints in the memory of one process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from zmqrl.config.kinds import NO_KEYS, NoKeys
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, Saved
from zmqrl.errors import StoreError
from zmqrl.types import Version, Weights


class MemoryStore(DataStore):
    """Dictionaries with the rules of a directory. the place only names it."""

    def __init__(self, place: str, keep: int, config: NoKeys = NO_KEYS) -> None:
        super().__init__(place, keep, config)
        self.path = place
        self._keep = keep
        self._versions: dict[Version, bytes] = {}
        self._fulls: dict[Version, bytes] = {}
        self._best: tuple[Version, bytes, float] | None = None
        self._kept: dict[Version, bytes] = {}

    @classmethod
    def place(cls, config: NoKeys, run_dir: Path, lineage: str | None) -> str:
        return f"{run_dir}/{lineage}"

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        content = tensors.dump(weights, meta)
        self._versions[version] = content
        return Saved(f"v{version}", len(content), hashlib.sha256(content).hexdigest())

    def read(self, key: str, nbytes: int, sha256: str, deadline_s: float) -> bytes:
        del deadline_s
        for version, content in self._versions.items():
            if f"v{version}" == key:
                if len(content) != nbytes or hashlib.sha256(content).hexdigest() != sha256:
                    raise StoreError("does not match the digest of its notice", name=key, place=self.path)
                return content
        raise StoreError("not found", name=key, place=self.path)

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

    def keep(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> None:
        self._kept[version] = tensors.dump(weights, meta)

    def newest_kept(self) -> bytes | None:
        return self._kept[max(self._kept)] if self._kept else None

    def versions(self) -> list[Version]:
        return sorted({*self._versions, *self._kept, *([self._best[0]] if self._best else [])})

    def weights_of(self, version: Version) -> bytes | None:
        return self._versions.get(version) or self._kept.get(version) or super().weights_of(version)

    def retire(self) -> None:
        for version in sorted(self._versions)[: -self._keep]:
            del self._versions[version]
        for version in sorted(self._fulls)[:-2]:
            del self._fulls[version]
