"""A store that takes its time once: while it saves the first version after a FULL that holds a replay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from zmqrl.data_stores.base import Saved
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.types import Version, Weights

WINDOW = "saving"
"""The file that is there meanwhile, beside the store."""
FROM_N, SLOW_S = 12, 5.0


class SlowStore(DirectoryStore):
    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        window = Path(self.path).with_name(WINDOW)
        after_full = Path(self.path, f"full-{version.incarnation}-{version.n - 1}.safetensors").exists()
        if version.n >= FROM_N and after_full and not window.exists():
            window.touch()
            time.sleep(SLOW_S)
        return super().save(version, weights, meta)
