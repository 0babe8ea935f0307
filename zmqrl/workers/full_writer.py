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
MOST_SHARE = 0.2
"""Of the time between two durable FULLs, the most that writing one may take."""
STAYS = "the previous full checkpoint is kept"


class FullWriter:
    """The run continues without a FULL that cannot be written, and tries again soon. One thread.

    The clock is that of durable FULLs alone, and counts from the moment whose state they hold: others, which sync
    writes in between, survive the process and not a power cut.
    """

    def __init__(self, store: DataStore, saving: Saving, every_s: float) -> None:
        self._store, self._saving, self._every_s = store, saving, every_s
        self._durable_at_s = time.monotonic()
        self._again_at_s = -float("inf")
        self._took_s = 0.0
        self._is_stretched = False
        self._beside: BackgroundFull | None = None
        self.spent_s = 0.0
        """Time that the run waited for FULL."""

    @property
    def interval_s(self) -> float:
        """Seconds from one durable FULL to the next: `run.checkpoint_every_s`, longer where writing takes long."""
        return max(self._every_s, self._took_s / MOST_SHARE)

    def hurry(self) -> None:
        """One is due at the next boundary: what this learner began with may be the only one."""
        self._durable_at_s = -float("inf")

    def due(self) -> bool:
        """Whether a durable FULL is to be written at this boundary."""
        now = time.monotonic()
        return now - self._durable_at_s >= self.interval_s and now >= self._again_at_s

    def write(self, full: Full, last: bool) -> int | None:
        """Its bytes, None when it failed. Only with the `last` of a run it waits for the store."""
        begun = time.monotonic()
        durable = last or self.due()
        nbytes = self._write(lambda: self._save(full, durable, last), last)
        took_s = time.monotonic() - begun
        if durable:
            self._count(begun, took_s, nbytes is not None)
        self.spent_s += took_s
        return nbytes

    def write_beside(self, begin: Callable[[], BackgroundFull]) -> None:
        """Begin to write one while training continues; nothing while one is on its way."""
        if not self.is_writing():
            self._beside = begin()

    def is_writing(self, wait: bool = False) -> bool:
        """Whether a FULL is on its way; `wait` for its end. A failure is reported here."""
        beside = self._beside
        if beside is not None and wait:
            with self._saving.reported():
                beside.wait()
        if beside is not None and beside.is_written:
            self._beside = None
            nbytes = self._saving.attempt("the full checkpoint", beside.result, f"{STAYS}, the run continues")
            self._count(beside.begun_at_s, beside.took_s, nbytes is not None)
        return self._beside is not None

    def _save(self, full: Full, durable: bool, last: bool) -> int:
        if not (last or full.rows):
            return self._store.save_full(full, durable)
        with self._saving.reported():  # with replay it may take longer than a stop would wait
            return self._store.save_full(full, durable)

    def _write(self, write: Callable[[], int], last: bool) -> int | None:
        if not last:
            return self._saving.attempt("the full checkpoint", write, f"{STAYS}, the run continues")
        try:
            return self._saving.insist("the full checkpoint", write, "the end of the run waits, retrying")
        except StoreError as error:
            self._saving.problem(str(error), f"{STAYS}: a resume continues from it")
            return None

    def _count(self, begun_at_s: float, took_s: float, is_written: bool) -> None:
        if not is_written:
            self._again_at_s = time.monotonic() + AGAIN_S
            return
        self._durable_at_s, self._took_s = begun_at_s, took_s
        was, self._is_stretched = self._is_stretched, self.interval_s > self._every_s
        if self._is_stretched and not was:
            self._saving.problem(
                f"a full checkpoint took {took_s:.1f} s to write, more than a fifth of run.checkpoint_every_s "
                f"({self._every_s:g} s)",
                f"the next one follows after {self.interval_s:.0f} s, the most that a power failure loses; a faster "
                "disk for store.path or a smaller replay.capacity shortens it",
            )
