"""Weights on their way to this host's workers: fetched and verified once, then into the shared buffer."""

from __future__ import annotations

import os

from zmqrl.data_stores.base import DataStore
from zmqrl.shared_memory.weights import WeightsWriter
from zmqrl.types import Notice, Version

READ_DEADLINE_S = 10.0


class WeightsRelay:
    """Holds the memfd of the weights; its only writer."""

    def __init__(self, store: DataStore) -> None:
        self._store = store
        self.fd = os.memfd_create("zmqrl-weights")
        self._writer = WeightsWriter(self.fd)
        self._version: Version | None = None

    def take(self, notices: list[Notice]) -> Notice | None:
        """Fetch the newest of `notices` if it is new.

        Returns:
            The notice whose weights are now in the buffer, or None.

        Raises:
            StoreError: It could not be read and verified within `READ_DEADLINE_S`.
        """
        if not notices:
            return None
        newest = max(notices, key=lambda notice: notice.version)
        if self._version is not None and newest.version <= self._version:
            return None
        payload = self._store.read(newest.key, newest.nbytes, newest.sha256, READ_DEADLINE_S)
        self._writer.write(newest, payload)
        self._version = newest.version
        return newest

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the writer."""
        os.close(self.fd)
