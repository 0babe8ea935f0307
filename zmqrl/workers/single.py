"""Single mode: the rollout worker's loop inside the learner process, over the inproc backend. No sockets."""

from __future__ import annotations

from dataclasses import replace

from zmqrl.config.plan import Boot
from zmqrl.data_stores.base import DataStore
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.base import LearnerEnds, LedgerView
from zmqrl.memory_backends.inproc import InprocChannel, InprocStream
from zmqrl.types import Notice, Version
from zmqrl.workers.rollout_worker import RolloutWorker

READ_S = 10.0


class StoredWeights:
    """What the host's shared buffer is to a worker process: the announced version, read from the store."""

    def __init__(self, store: DataStore, channel: InprocChannel) -> None:
        self._store, self._channel = store, channel

    def version(self) -> Version | None:
        """The version announced last."""
        notice = self._channel.notice
        return None if notice is None else notice.version

    def read(self) -> tuple[Notice, bytes] | None:
        """Its verified bytes."""
        notice = self._channel.notice
        if notice is None:
            return None
        return notice, self._store.read(notice.key, notice.nbytes, notice.sha256, READ_S)


def single_stream(boot: Boot, store: DataStore, events: EventPipe) -> tuple[LearnerEnds, LedgerView]:
    """Ends whose `take` collects the round that is missing, and the stream records."""
    # A learner that died took its slots with it: its vector envs go on as those of a resumed run.
    stream = InprocStream(replace(boot.plan, resume=boot.plan.resume or boot.spawn > 0))
    worker = RolloutWorker(
        replace(boot, role="worker", index=0), stream.sink, StoredWeights(store, stream.channel), events
    )
    stream.source.collect = worker.turn
    return LearnerEnds(stream.source, stream.channel), stream
