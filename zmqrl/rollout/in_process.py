"""Single mode: the rollout worker in the learner's process, over the inproc ends. No sockets, no other thread."""

from __future__ import annotations

from collections.abc import Callable

from zmqrl.bus_ends.inproc import InprocChannel, InprocStream
from zmqrl.bus_ends.learner_end import LearnerEnds
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot
from zmqrl.data_stores.base import DataStore
from zmqrl.logs.events import EventPipe
from zmqrl.rollout.worker import RolloutWorker
from zmqrl.types import Ledger, Notice, Version

READ_S = 10.0


class StoredWeights:
    """What the host's shared buffer is to a worker process: the announced version, read from the store."""

    def __init__(self, store: DataStore, channel: InprocChannel) -> None:
        self._store, self._channel = store, channel

    def version(self, n: int | None = None) -> Version | None:
        """The version announced last, or the one of number `n`."""
        notice = self._notice(n)
        return None if notice is None else notice.version

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        """Its verified bytes."""
        notice = self._notice(n)
        if notice is None:
            return None
        return notice, self._store.read(notice.key, notice.nbytes, notice.sha256, READ_S)

    def _notice(self, n: int | None) -> Notice | None:
        newest = self._channel.notice
        if newest is None or n is None or newest.version.n == n:
            return newest
        return newest.before if newest.before is not None and newest.before.version.n == n else None


class InProcessWorker:
    """Worker 0, which has every vector env, and the stream that it writes. It steps when `collect` is called."""

    def __init__(self, boot: Boot, store: DataStore, events: EventPipe) -> None:
        # A learner that died took its slots with it: its vector envs continue as those of a resumed run.
        self._stream = InprocStream(replace(boot.plan, resume=boot.plan.resume or boot.spawn > 0))
        self.ends = LearnerEnds(self._stream.source, self._stream.channel)
        """The learner's."""
        weights = StoredWeights(store, self._stream.channel)
        self._worker = RolloutWorker(replace(boot, role="worker", index=0), self._stream.sink, weights, events)

    def collect(self, interrupted: Callable[[], bool]) -> None:
        """Collect what the current version still lacks; returns at once when there is nothing to do.

        `interrupted` is called between two env steps; once it is true the segment is abandoned, and no other begun.
        """
        self._worker.collect(interrupted)
        if interrupted():
            self._stream.sink.exit()

    def ledger(self) -> Ledger:
        """The stream records of the run."""
        return self._stream.ledger()
