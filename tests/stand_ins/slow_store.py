"""Stores that take their time, by dotted path for `store.kind`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from zmqrl.data_stores.base import Full, Saved
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.types import Version, Weights

FULL_S = 3.0
WINDOW = "saving"
"""The file that is there while `SlowVersions` waits, beside the store."""
FROM_N, VERSION_S = 12, 5.0


class SlowFulls(DirectoryStore):
    """A durable FULL takes `full_s`, but for the first."""

    full_s = FULL_S

    def save_full(self, full: Full, durable: bool) -> int:
        if durable and full.version.n > 0:
            time.sleep(self.full_s)
        return super().save_full(full, durable)


class SlowerFulls(SlowFulls):
    """Three times as slow."""

    full_s = 3 * FULL_S


class SlowVersions(DirectoryStore):
    """Takes `VERSION_S` once: while it saves the first version after a FULL that holds a replay."""

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        window = Path(self.path).with_name(WINDOW)
        after_full = Path(self.path, f"full-{version.incarnation}-{version.n - 1}.safetensors").exists()
        if version.n >= FROM_N and after_full and not window.exists():
            window.touch()
            time.sleep(VERSION_S)
        return super().save(version, weights, meta)
