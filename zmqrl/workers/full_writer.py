"""When FULL is due, and what becomes of it when the store fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from zmqrl.data_stores.base import DataStore, Full
from zmqrl.errors import StoreError
from zmqrl.workers.background_full import BackgroundFull
from zmqrl.workers.saving import Saving

AGAIN_S = 1.0
"""After a FULL that could not be written."""
STAYS = "the FULL before it stays"


class FullWriter:
    """The run goes on without a FULL that cannot be written, and tries again soon. One thread."""

    def __init__(self, store: DataStore, saving: Saving, every_s: float) -> None:
        self._store, self._saving, self._every_s = store, saving, every_s
        self._written_at_s = time.monotonic()
        self._beside: BackgroundFull | None = None
        self.spent_s = 0.0
        """Time that the run waited for FULL."""

    def hurry(self) -> None:
        """One is due at the next boundary: what this learner began with may be the only one."""
        self._written_at_s = -float("inf")

    def due(self, every_round: bool) -> bool:
        """Whether FULL is to be written at this boundary."""
        return every_round or time.monotonic() - self._written_at_s >= self._every_s

    def write(self, full: Full, last: bool) -> int | None:
        """Its bytes, None when it failed. Only with the `last` of a run it waits for the store."""
        begun = time.monotonic()
        durable = last or self.due(every_round=False)
        nbytes = self._write(lambda: self._store.save_full(full, durable), last)
        ended = time.monotonic()
        self._written_at_s = ended if nbytes is not None else ended - max(0.0, self._every_s - AGAIN_S)
        self.spent_s += ended - begun
        return nbytes

    def write_beside(self, begin: Callable[[], BackgroundFull]) -> None:
        """Begin to write one while training goes on; nothing while one is on its way."""
        if not self.is_writing():
            self._beside = begin()
            self._written_at_s = time.monotonic()

    def is_writing(self, wait: bool = False) -> bool:
        """Whether a FULL is on its way; `wait` for its end. What failed is told here."""
        beside = self._beside
        if beside is not None and wait:
            beside.wait()
        if beside is not None and beside.is_written:
            self._beside = None
            self._saving.attempt("FULL", beside.result, f"{STAYS}, and the run goes on")
        return self._beside is not None

    def _write(self, write: Callable[[], int], last: bool) -> int | None:
        if not last:
            return self._saving.attempt("FULL", write, f"{STAYS}, and the run goes on")
        try:
            return self._saving.insist("the last FULL", write, "the end of the run waits, and tries again")
        except StoreError as error:
            self._saving.problem(str(error), f"{STAYS}: a resume goes on from there")
            return None
