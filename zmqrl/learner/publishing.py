"""Versions of the weights: saved in the store, announced to the workers, and on record for a successor."""

from __future__ import annotations

import json
import time

from zmqrl.algorithms.base import NUMBERS, Algorithm, numbers_of
from zmqrl.bus_ends.base import LearnerChannel
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.retention import Milestones
from zmqrl.errors import StoreError
from zmqrl.learner.counters import RunProgress
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import NewVersion
from zmqrl.shared_memory.arena import LearnerRecord
from zmqrl.types import Notice, Weights


class Publisher:
    """Publishes the current version of a run. The learner's main thread only."""

    def __init__(
        self,
        plan: RunPlan,
        algorithm: Algorithm,
        store: DataStore,
        channel: LearnerChannel,
        writer: RetryingWriter,
        events: EventPipe,
        progress: RunProgress,
    ) -> None:
        self._mode, self._algorithm, self._progress = plan.config.mode, algorithm, progress
        self._env, self._stores_numbers = plan.config.env, plan.env.receives_numbers
        self._store, self._channel, self._writer, self._events = store, channel, writer, events
        self._keep_every = plan.config.store.keep_every
        self._milestones: Milestones | None = None
        self.notice: Notice | None = None
        """Notice of the version that was saved last."""
        self.spent_s = 0.0
        """Time that the run waited for the store."""

    def publish(self, weights: Weights, announce: bool = True) -> None:
        """Save `weights` as the current version and, with `announce`, make it known to the workers."""
        begun = time.monotonic()
        notice = self.save(weights)
        saved = time.monotonic()
        if announce:
            self.announce(notice)
        announced = time.monotonic()
        self._store.retire()
        self.spent_s += saved - begun + time.monotonic() - announced

    def save(self, weights: Weights) -> Notice:
        """Have `weights` in the store as the current version, however long the store fails (`store.wait_s`)."""
        self.notice = self._writer.retry_until(
            "the current version",
            lambda: self._save(weights),
            "the run waits because workers receive no weights, retrying",
        )
        return self.notice

    def _save(self, weights: Weights) -> Notice:
        version, progress = self._progress.version, self._progress.snapshot
        numbers = numbers_of(self._algorithm, self._env, progress)
        metadata = {"env_steps": str(progress.env_steps), "updates": str(progress.updates)}
        if self._stores_numbers:
            metadata[NUMBERS] = json.dumps(numbers)
        saved = self._store.save(version, weights, metadata)
        if self._keep_every is not None:
            self._milestones = self._milestones or Milestones(self._keep_every, _kept_at(self._store))
            if self._milestones.is_due(progress.done):
                self._store.keep(version, weights, metadata)
                self._milestones.kept(progress.done)
        return Notice(version, saved.key, saved.nbytes, saved.sha256, progress.env_steps, progress.updates, numbers)

    def announce(self, notice: Notice) -> None:
        """Make `notice` known to the workers; in single mode the learner notifies the host agent."""
        self.record_progress()
        self._channel.announce(notice)
        if self._mode.in_process:
            self._events.send(NewVersion(notice))

    def record_progress(self) -> None:
        """Record the current version for a successor. Before slots of older segments are released.

        A successor that finds a later version than its FULL's collects again what it needs, with slots to spare.
        """
        c, oldest_incarnation = self._progress.counters, self._progress.oldest_incarnation
        self._channel.record_progress(LearnerRecord(c.version, c.updates, c.updates_lost, oldest_incarnation))

    def verify_published(self) -> bool:
        """Whether the store still has the current version as it was saved; a damaged one must be published again."""
        notice = self.notice
        if notice is None:
            return True
        try:
            self._store.read(notice.key, notice.nbytes, notice.sha256, 0.0)
        except StoreError as error:
            self._writer.report_problem(str(error), "the version is written and announced again")
            return False
        return True


def _kept_at(store: DataStore) -> int:
    """Env steps, or else updates, of the newest version that an earlier learner kept."""
    content = store.newest_kept()
    metadata = {} if content is None else tensors.parse(content)[1]
    return int(metadata.get("env_steps", 0)) or int(metadata.get("updates", 0))
