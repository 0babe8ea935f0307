"""The experience stream inside one process and one thread: the same slots, checks and stream records, no sockets."""

from __future__ import annotations

from collections.abc import Sequence

from zmqrl.broker.events import (
    Announced,
    Assignments,
    Handover,
    HandoverAnswered,
    HandoverRequest,
    LearnerReported,
    Sealed,
    WorkerExited,
    WorkerReported,
)
from zmqrl.broker.state import BrokerState
from zmqrl.bus_ends.learner_end import LearnerChannel, SegmentSource, TakenSegment
from zmqrl.bus_ends.worker_end import ArenaWriter, LeasedSink
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Ledger, Notice, SlotRef


class InprocStream:
    """Broker, source and sink of one thread; worker 0 has every vector env."""

    def __init__(self, plan: RunPlan) -> None:
        if plan.total_workers > 1:
            raise ConfigError(f"inproc has one worker, the plan has {plan.total_workers}")
        self.arena = Arena.private(plan)
        self.state = BrokerState(plan, self.arena)
        self.source = InprocSource(self)
        self.channel = InprocChannel(self)
        self.sink = InprocSink(self)
        self.state.handle(WorkerReported(0, 0, (), {}))

    def ledger(self) -> Ledger:
        """The stream records of the run."""
        return self.arena.ledger()


class InprocSource(SegmentSource):
    """What the sink of the same thread has sealed: nothing arrives while `take` is called."""

    def __init__(self, stream: InprocStream) -> None:
        super().__init__(stream.arena)
        self._state = stream.state

    def take(self, timeout_s: float) -> list[TakenSegment]:
        if not self._new:
            self._scan()
        return self._pop_new()

    def close(self) -> None:
        self._arena.close()

    def _released(self) -> None:
        """The next `handle` collects them."""


class InprocChannel(LearnerChannel):
    """Calls the broker's state."""

    def __init__(self, stream: InprocStream) -> None:
        super().__init__(stream.arena)
        self._state = stream.state

    @property
    def notice(self) -> Notice | None:
        """The version that was announced last."""
        return self._notice

    def announce(self, notice: Notice) -> None:
        self._note(notice)
        self._state.handle(Announced(notice, self._back))

    def report(self, env_steps: int, updates: int) -> None:
        self._state.handle(LearnerReported(env_steps, updates))

    def handover_requests(self) -> list[HandoverRequest]:
        return self._state.assignment.requests

    def answer(self, handover: Handover) -> None:
        self._state.handle(HandoverAnswered(handover))

    def close(self) -> None:
        """Nothing is held."""


class InprocSink(LeasedSink):
    """Writes into the source's own memory."""

    def __init__(self, stream: InprocStream) -> None:
        super().__init__(ArenaWriter(stream.arena))
        self._state = stream.state

    def poll(self, timeout_s: float) -> Assignments:
        self._flush()
        self._state.handle(WorkerReported(0, 0, (), {}, serial=self._serial))
        snapshot = self._state.snapshot(0)
        if snapshot is not None:
            self._apply(snapshot)
        return self._assignments()

    def _push(self, refs: Sequence[SlotRef]) -> None:
        self._state.handle(Sealed(0, 0, refs))  # the source scans the words: no need to forward
        snapshot = self._state.snapshot(0)
        if snapshot is not None:
            self._apply(snapshot)

    def exit(self) -> None:
        """The worker has ended: rows of abandoned segments are dropped."""
        self._state.handle(WorkerExited(0, 0))

    def close(self) -> None:
        """Nothing is held."""
