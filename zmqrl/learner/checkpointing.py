"""When the full checkpoint (FULL) is written, also while training continues, and what follows when the store fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zmqrl.algorithms.base import BaseLearner
from zmqrl.bus_ends.learner_end import SegmentSource, TakenSegment
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.errors import StoreError
from zmqrl.learner.counters import RunProgress
from zmqrl.learner.full_content import copy_with_sampler, full_of, with_before, with_held, with_loaded, with_replay
from zmqrl.learner.publishing import PublishedWeights
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.supervision.run_owner import OwnerCheck
from zmqrl.types import Array, SlotRef, Weights

if TYPE_CHECKING:
    from zmqrl.data_sets.rows import LoadedReplay

RETRY_AFTER_S = 1.0
"""After a FULL that could not be written."""
MOST_SHARE = 0.2
"""Share of the time between two durable FULLs that writing one may take at most."""
BACKGROUND_LIMIT_S = 600.0
KEPT = "the previous full checkpoint is kept"


class FullCheckpoints:
    """Writes the full checkpoints of a run. The learner's main thread only.

    The run continues without a FULL that cannot be written, and tries again soon. The clock is that of durable FULLs
    alone, and counts from the moment whose state they hold: others, which sync writes in between, survive the process
    and not a power cut.
    """

    def __init__(
        self, plan: RunPlan, store: DataStore, writer: RetryingWriter, progress: RunProgress, source: SegmentSource
    ) -> None:
        self._owner = OwnerCheck(Path(plan.run_dir), plan.run_id)
        self._section = plan.config.learner
        self.device: str | None = None
        """What the learner computes on, as of `made_with`; None until it is known."""
        self.loaded: LoadedReplay | None = None
        """Replay of a data set."""
        self.before: Callable[[], PublishedWeights | None] = lambda: None
        """Returns the version before the current one, if FULL holds that too (`Publisher.before`)."""
        self.syncs: list[Callable[[], None]] = []
        """Makes what a FULL refers to durable, before a durable FULL. StoreError."""
        self._every_s = plan.config.run.checkpoint_every_s
        self._store, self._writer, self._progress, self._source = store, writer, progress, source
        self._durable_at_s = time.monotonic()
        self._retry_at_s = -float("inf")
        self._took_s = 0.0
        self._is_stretched = False
        self._background: BackgroundWrite | None = None
        self.spent_s = 0.0
        """Time that the run waited for FULL."""

    def sync(self) -> None:
        """What FULL counts of other files survives a power cut. StoreError."""
        for sync in self.syncs:
            sync()

    @property
    def interval_s(self) -> float:
        """Seconds from one durable FULL to the next: `run.checkpoint_every_s`, longer where writing takes long."""
        return max(self._every_s, self._took_s / MOST_SHARE)

    def schedule_now(self) -> None:
        """One is due at the next boundary: the FULL that this learner began with may be the only one."""
        self._durable_at_s = -float("inf")

    def is_due(self) -> bool:
        """Whether a durable FULL is to be written at this boundary."""
        now = time.monotonic()
        return now - self._durable_at_s >= self.interval_s and now >= self._retry_at_s

    def make_start_durable(self, full: Full | None, weights: Weights) -> None:
        """Before anything is announced: the FULL begun from, or else a first one, survives a power cut.

        A first FULL has `weights` alone: a learner made from them is the one that began.
        """
        begun_from = full or full_of(self._progress, weights, learner=self._section)
        # After a sync that failed the next one succeeds, though pages were dropped: the whole FULL is written again.
        syncs = [] if full is None else [lambda: self._store.sync_full(full.version)]
        self._writer.retry_until(
            "the initial full checkpoint",
            lambda: syncs.pop()() if syncs else self._store.save_full(begun_from, durable=True),
            "the start of the run waits, retrying",
        )

    def write(
        self,
        learner: BaseLearner,
        replay: SegmentReplay | None = None,
        last: bool = False,
        without: Collection[int] = (),
    ) -> int | None:
        """Write FULL for the current version, with `replay` when given; returns its bytes, None when it failed.

        Only with the `last` of a run it waits for the store. `without`: vector envs whose last segment was taken since
        the boundary, and is left out.

        Raises:
            ConfigError: Another launcher has taken the run over.
        """
        self._owner.check()
        full = self._full_of(learner, without)
        if replay is not None:
            full = with_replay(full, replay, self._source.columns)
        begun = time.monotonic()
        durable = last or self.is_due()
        nbytes = self._save(full, durable, last)
        took_s = time.monotonic() - begun
        if durable:
            self._finish(begun, took_s, nbytes is not None)
        self.spent_s += took_s
        return nbytes

    def write_in_background(self, learner: BaseLearner, replay: SegmentReplay) -> None:
        """Begin to write FULL with `replay` while training continues; nothing while one is under way.

        Raises:
            ConfigError: Another launcher has taken the run over.
        """
        self._owner.check()
        if self.is_writing():
            return
        full = copy_with_sampler(self._full_of(learner), replay)
        held = [TakenSegment(ref, meta) for ref, meta in replay.held()]
        source = self._source
        self._background = BackgroundWrite(self._store, full, held, source.columns, source.is_held, self.sync)

    def is_writing(self, wait: bool = False) -> bool:
        """Whether a FULL is written in the background; `wait` for its end. A failure is reported here."""
        background = self._background
        if background is not None and wait:
            with self._writer.reporting():
                background.wait()
        if background is not None and background.is_written:
            self._background = None
            nbytes = self._try_once(background.result)
            self._finish(background.begun_at_s, background.took_s, nbytes is not None)
        return self._background is not None

    def _full_of(self, learner: BaseLearner, without: Collection[int] = ()) -> Full:
        full = full_of(
            self._progress, learner.weights(), learner.state(), without, learner=self._section, device=self.device
        )
        before = self.before()
        full = full if before is None else with_before(full, before)
        return full if self.loaded is None else with_loaded(full, self.loaded)

    def _save(self, full: Full, durable: bool, last: bool) -> int | None:
        def save() -> int:
            if durable:
                self.sync()
            if not (last or full.rows):
                return self._store.save_full(full, durable)
            with self._writer.reporting():  # with replay it may take longer than a stop would wait
                return self._store.save_full(full, durable)

        if not last:
            return self._try_once(save)
        try:
            return self._writer.retry_until("the full checkpoint", save, "the end of the run waits, retrying")
        except StoreError as error:
            self._writer.report_problem(str(error), f"{KEPT}: a resume continues from it")
            return None

    def _try_once(self, write: Callable[[], int]) -> int | None:
        return self._writer.try_once("the full checkpoint", write, f"{KEPT}, the run continues")

    def _finish(self, begun_at_s: float, took_s: float, is_written: bool) -> None:
        """A durable FULL has ended: when the next one is due."""
        if not is_written:
            self._retry_at_s = time.monotonic() + RETRY_AFTER_S
            return
        self._durable_at_s, self._took_s = begun_at_s, took_s
        was, self._is_stretched = self._is_stretched, self.interval_s > self._every_s
        if self._is_stretched and not was:
            self._writer.report_problem(
                f"a full checkpoint took {took_s:.1f} s to write, more than a fifth of run.checkpoint_every_s "
                f"({self._every_s:g} s)",
                f"the next one follows after {self.interval_s:.0f} s, the most that a power failure loses; a faster "
                "disk for store.path or a smaller replay.capacity shortens it",
            )


class BackgroundWrite:
    """One FULL with replay, on its way while training continues: slots are copied one by one, and verified afterwards.

    The thread reads slots and writes a file; everything else was copied before. The copy of the slots is counted in
    `shared_memory.arena.check_fits`.
    """

    def __init__(
        self,
        store: DataStore,
        full: Full,
        held: Sequence[TakenSegment],
        columns: Mapping[str, Array],
        is_held: Callable[[SlotRef], bool],
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        """`full` is a `copy_with_sampler`; `held` are the segments of replay, oldest first."""
        self._store, self._full = store, full
        self._held, self._columns, self._is_held, self._sync = held, columns, is_held, sync
        self._nbytes = 0
        self.begun_at_s = time.monotonic()
        """The moment whose state it holds."""
        self.took_s = 0.0
        """Once it is written."""
        self._error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="full", daemon=True)
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether the thread has ended: `result` states how."""
        return not self._thread.is_alive()

    def result(self) -> int:
        """Its bytes, once it is written. StoreError when it failed."""
        if self._error is not None:
            raise self._error
        return self._nbytes

    def wait(self) -> None:
        """Until it is written, or has failed."""
        self._thread.join(BACKGROUND_LIMIT_S)

    def _run(self) -> None:
        try:
            self._sync()
            self._nbytes = self._store.save_full(self._with_replay(), durable=True)
        except StoreError as error:
            self._error = error
        except BaseException as error:  # noqa: BLE001 - a thread's end: what is not reported would count as written
            cause = f"{type(error).__name__}: {error}"
            self._error = StoreError("cannot be written", name="the full checkpoint", cause=cause)
            self._error.__cause__ = error
        self.took_s = time.monotonic() - self.begun_at_s

    def _with_replay(self) -> Full:
        """What replay let go of before or while it was copied is left out, and so are its priorities."""
        copies = {name: np.empty((len(self._held), *c.shape[1:]), c.dtype) for name, c in self._columns.items()}
        whole: list[int] = []
        for place, (ref, _) in enumerate(self._held):
            for name, column in self._columns.items():
                copies[name][len(whole)] = column[ref.slot]
            if self._is_held(ref):
                whole.append(place)
        kept = {name: copy[: len(whole)] for name, copy in copies.items()}
        return with_held(self._full, self._held, whole, kept)
