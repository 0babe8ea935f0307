"""Ends of a simulated bus: the real worker's and learner's, with queues in place of sockets, and words with a fuse."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from zmqrl.broker import events as ev
from zmqrl.broker.events import Assignments
from zmqrl.bus_ends.learner_end import SegmentSource, TakenSegment
from zmqrl.bus_ends.remote_sink import RemoteWriter
from zmqrl.bus_ends.worker_end import ArenaWriter, LeasedSink
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import SlotRef


class Killed(Exception):
    """SIGKILL before a store."""


class Words:
    """The arena's words; with a fuse, whoever runs dies before its n-th store."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self.fuse: int | None = None

    def __getitem__(self, key: Any) -> Any:
        return self._words[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        at = range(*key.indices(len(self._words))) if isinstance(key, slice) else (key,)
        for word, number in zip(at, value if isinstance(key, slice) else (value,), strict=True):
            if self.fuse is not None:
                if self.fuse == 0:
                    raise Killed
                self.fuse -= 1
            self._words[word] = number


class Sink(LeasedSink):
    """As `ZmqSink`, with queues in place of its sockets."""

    def __init__(self, plan: RunPlan, arena: Arena, index: int, spawn: int, remote: bool) -> None:
        self.remote = RemoteWriter(plan) if remote else None
        super().__init__(self.remote or ArenaWriter(arena))
        self._arena, self._who, self._broker = arena, (index, spawn), 0
        self._said_s, self._said_segments = 0.0, 0
        self.control: deque[ev.Event] = deque()
        self.data: deque[ev.Event] = deque()
        self.inbox: deque[tuple[int, ev.AssignmentSnapshot]] = deque()

    def _push(self, refs: Sequence[SlotRef]) -> None:
        if self.remote is None:
            self.data.append(ev.Sealed(*self._who, tuple(refs)))
            return
        for ref in refs:
            columns = {name: column.copy() for name, column in self.remote._columns[ref].items()}
            self.data.append(ev.Delivered(*self._who, ref, self.remote._metas[ref], columns))

    def report(self, resend: bool, segment_s: float, now: float) -> None:
        """`segment_s`: what each segment since the last report is said to have taken."""
        self._said_s += segment_s * (self._segments - self._said_segments)
        self._said_segments = self._segments
        seen = self._arena.broker_incarnation
        if self.remote is None and seen != self._broker:
            self._broker, self._serial = seen, -1
        leases = (*self._free, *self._open, *self._sealed)
        open_rows = [] if self.remote is None else [(v, i, rows) for v, i, rows in self.remote.open_now()]
        report = (
            leases,
            self._reported_streams(),
            self._broker,
            self._serial,
            self.remote is not None,
            open_rows,
            self._stopped(),
        )
        counted = (self._segments, self._said_s, now)
        self.control.append(ev.WorkerReported(*self._who, *report, *counted))
        if resend and self._sealed:
            self._push(sorted(self._sealed, key=lambda ref: self._sealed[ref]))

    def receive(self) -> None:
        while self.inbox:
            broker, snapshot = self.inbox.popleft()
            if snapshot.spawn != self._who[1] or (self.remote is None and broker != self._broker):
                continue
            if broker != self._broker:
                self._broker, self._serial = broker, -1
            self._apply(snapshot)
            self._stop = snapshot.stop

    def poll(self, timeout_s: float = 0.0) -> Assignments:
        self._flush()
        return self._assignments()

    def close(self) -> None:
        """Nothing is held."""


class Source(SegmentSource):
    def take(self, timeout_s: float = 0.0) -> list[TakenSegment]:
        self._scan()
        return self._pop_new()

    def close(self) -> None:
        """Nothing is held."""

    def _released(self) -> None:
        """The bus reports it."""
