"""Weights on their way to this host's workers: fetched and verified once, then into the shared buffer."""

from __future__ import annotations

import hashlib
import os

from zmqrl.data_stores.base import DataStore
from zmqrl.errors import StoreError
from zmqrl.shared_memory.weights import WeightsWriter
from zmqrl.types import Notice, Version

READ_DEADLINE_S = 0.2
"""The agent's loop waits for no file: every report to the broker is answered with the notice again."""


class WeightsRelay:
    """Holds the memfd of the weights; its only writer."""

    def __init__(self, store: DataStore | None, read_deadline_s: float = READ_DEADLINE_S) -> None:
        """`store`: None where this host does not see it; then only `put` brings weights."""
        self._store, self._read_deadline_s = store, read_deadline_s
        self.fd = os.memfd_create("zmqrl-weights")
        self._writer = WeightsWriter(self.fd)
        self._version: Version | None = None

    def take(self, notices: list[Notice]) -> Notice | None:
        """Fetch the newest of `notices` if it is new, after the one before it if that is needed too.

        Returns:
            The notice whose weights are now in the buffer, or None.

        Raises:
            StoreError: It could not be read and verified within the deadline.
        """
        newest = self.newest(notices)
        if newest is None or self._store is None:
            return None
        for notice in self.missing(newest):
            self._write(notice, self._store.read(notice.key, notice.nbytes, notice.sha256, self._read_deadline_s))
        return newest

    def newest(self, notices: list[Notice]) -> Notice | None:
        """The newest of `notices`, when it is newer than what is in the buffer."""
        found = max(notices, key=lambda notice: notice.version, default=None)
        return found if found is not None and self.missing(found) else None

    def missing(self, newest: Notice) -> list[Notice]:
        """What of `newest` and the version before it is newer than what is in the buffer, in order."""
        wanted = (newest,) if newest.before is None else (newest.before, newest)
        return [notice for notice in wanted if self._version is None or notice.version > self._version]

    def put(self, notice: Notice, content: bytes) -> Notice | None:
        """What came another way than by the store; None when it is not newer.

        Raises:
            StoreError: It does not match the digest of its notice.
        """
        if self.newest([notice]) is None:
            return None
        if len(content) != notice.nbytes or hashlib.sha256(content).hexdigest() != notice.sha256:
            raise StoreError("was received with a wrong digest", name=f"version {notice.version}")
        self._write(notice, content)
        return notice

    def _write(self, notice: Notice, content: bytes) -> None:
        self._writer.write(notice, content)
        self._version = notice.version

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the writer."""
        os.close(self.fd)
