"""Versions of the weights: saved in the store, announced to the workers, and on record for a successor."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from zmqrl.algorithms.base import NUMBERS, Algorithm, numbers_of
from zmqrl.bus_ends.learner_end import LearnerChannel
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
from zmqrl.types import Notice, Version, Weights


class PublishedWeights(NamedTuple):
    """A version that is in the store."""

    notice: Notice
    weights: Weights
    """Empty where the next full checkpoint does not need them."""


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
        self._ahead = self._mode.rounds_ahead
        self._recent: deque[PublishedWeights] = deque(maxlen=1 + self._ahead)
        """The version that was saved last; in pipelined also the one before."""
        self.spent_s = 0.0
        """Time that the run waited for the store."""

    @property
    def notice(self) -> Notice | None:
        """Notice of the version that was saved last."""
        return self._recent[-1].notice if self._recent else None

    def published(self, n: int) -> PublishedWeights | None:
        """The version of number `n`, if it is one of the last."""
        return next((published for published in self._recent if published.notice.version.n == n), None)

    @property
    def before(self) -> PublishedWeights | None:
        """pipelined: the version before the current one, with which the round is acted that is trained next."""
        return self.published(self._progress.version.n - 1) if self._ahead else None

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
        version, progress = self._progress.version, self._progress.snapshot
        numbers = numbers_of(self._algorithm, self._env, progress)
        before = None if self.before is None else structs.replace(self.before.notice, before=None)
        return self._save(Notice(version, "", 0, "", progress.env_steps, progress.updates, numbers, before), weights)

    def save_before(self, before: PublishedWeights) -> None:
        """Have the version before the current one in the store again, under this incarnation."""
        version = Version(self._progress.version.incarnation, before.notice.version.n)
        self._save(structs.replace(before.notice, version=version, before=None), before.weights)

    def _save(self, described: Notice, weights: Weights) -> Notice:
        """`described`: a notice without a key."""
        notice = self._writer.retry_until(
            "the current version",
            lambda: self._save_once(described, weights),
            "the run waits because workers receive no weights, retrying",
        )
        self._recent.append(PublishedWeights(notice, weights if self._ahead else {}))
        return notice

    def _save_once(self, described: Notice, weights: Weights) -> Notice:
        version = described.version
        metadata = {"env_steps": str(described.env_steps), "updates": str(described.updates)}
        if self._stores_numbers:
            metadata[NUMBERS] = json.dumps(described.schedule)
        saved = self._store.save(version, weights, metadata)
        if self._keep_every is not None:
            self._milestones = self._milestones or Milestones(self._keep_every, _kept_at(self._store))
            done = described.done
            if self._milestones.is_due(done):
                self._store.keep(version, weights, metadata)
                self._milestones.kept(done)
        return structs.replace(described, key=saved.key, nbytes=saved.nbytes, sha256=saved.sha256)

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

    def repair(self, weights: Callable[[], Weights]) -> None:
        """Publish again what the store has lost or damaged; `weights` returns those of the current version."""
        published = list(self._recent)
        if all(map(self._is_readable, published)):
            return
        for before in published[:-1]:
            self.save_before(before)
        self.publish(weights())

    def _is_readable(self, published: PublishedWeights) -> bool:
        """Whether the store still has the version as it was saved."""
        notice = published.notice
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
