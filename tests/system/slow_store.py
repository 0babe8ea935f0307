"""A store whose disk is slow: for `store.kind`."""

from __future__ import annotations

import time

from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore

FULL_S = 3.0


class SlowStore(DirectoryStore):
    """A durable FULL takes `FULL_S`, but for the first."""

    def save_full(self, full: Full, durable: bool) -> int:
        if durable and full.version.n > 0:
            time.sleep(FULL_S)
        return super().save_full(full, durable)
