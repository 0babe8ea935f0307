"""One record per worker index: host, connection, heartbeats, its process with leases and assignments; and its speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from zmqrl.broker.events import StreamAssignment
from zmqrl.types import SlotRef

WINDOW_S = 10.0
LEAST_S = 2.0
LEAST_SEGMENTS = 2
Liveliness = Literal["well", "slow", "stalled", "lost"]


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One lifetime of a worker: from its first report to this broker until it is known to be dead."""

    index: int
    spawn: int
    remote: bool = False
    """Whether the process has no arena: its leases are then credits."""
    listed: bool = False
    """An agent has named it alive: absent from now on means dead."""
    leases: dict[int, SlotRef] = field(default_factory=dict)
    """Leases by slot."""
    assigned: dict[int, StreamAssignment] = field(default_factory=dict)
    """What it is to step, by vector env."""
    leaving: set[int] = field(default_factory=set)
    """Vector envs that were taken off its assignments; it holds each until it reports that it has stopped it."""
    reported: frozenset[int] = frozenset()
    """The vector envs that it named last, also those with segments that are not accepted."""
    serial: int = 0
    """Grows with each change of `assigned`."""
    followed_serial: int = -1
    """The serial that it reported last."""

    def unbegun(self, vector_env: int, incarnation: int) -> StreamAssignment | None:
        """An assignment with states, as long as the process has not reported that it steps the vector env."""
        assignment = self.assigned.get(vector_env)
        found = assignment is not None and assignment.states and assignment.incarnation == incarnation
        return assignment if found else None


@dataclass(eq=False, slots=True)
class Pulse:
    """What the heartbeats of one process show, in monotonic seconds (`zmqrl.broker.liveness`)."""

    spawn: int
    progress: int
    at: float
    moved_at: float
    state: Liveliness = "well"


@dataclass(eq=False, slots=True)
class Worker:
    """What the broker knows of one worker index, until the worker has left and its last process is dead."""

    index: int
    host: str | None = None
    """The host whose agent reports it; None while no agent has."""
    acting: str = ""
    """The acting digest of its host."""
    is_member: bool = False
    """Whether the worker is there, or will be again: it may have vector envs and leases."""
    last_turn: int = 0
    """The turn in which it got its last lease."""
    peer: bytes | None = None
    """The connection of its last report: where it is answered."""
    pulse: Pulse | None = None
    process: WorkerProcess | None = None


class Workers:
    """The records, by index, and which of them are members. Pure."""

    def __init__(self, limit: int) -> None:
        """`limit`: a worker has an index below it."""
        self._limit = limit
        self._by_index: dict[int, Worker] = {}
        self._failed: set[int] = set()
        """Indexes that do not come back: the restart limit was reached, or the host was lost. They outlive the records:
        a host that was cut off may report them at any time."""
        self._any_host_reported = False
        self._settled: set[str] = set()
        """Hosts that have reported, were removed, or are not expected."""
        self._awaits_hosts = False
        """Hosts may be about to report their workers to this broker, as they did to the one before."""

    def __iter__(self) -> Iterator[Worker]:
        """Workers in the order in which their processes came."""
        return iter(self._by_index.values())

    def allows(self, index: int) -> bool:
        """Whether a worker can have this index."""
        return index < self._limit

    def of(self, index: int) -> Worker:
        """The record of an index that is allowed; made when it is the first mention."""
        return self._by_index.get(index) or self._by_index.setdefault(index, Worker(index))

    def known(self, index: int) -> Worker | None:
        """The record, if any report has mentioned the index."""
        return self._by_index.get(index)

    # processes

    def process(self, index: int | None) -> WorkerProcess | None:
        """The process of worker `index` that is there."""
        worker = None if index is None else self._by_index.get(index)
        return None if worker is None else worker.process

    def spawned(self, index: int, spawn: int) -> WorkerProcess | None:
        """The process of this spawn; None when it is not known, or known to be dead."""
        worker = self._by_index.get(index)
        process = None if worker is None else worker.process
        return process if process is not None and process.spawn == spawn else None

    def processes(self) -> list[WorkerProcess]:
        """Processes that are there, in the order in which they came."""
        return [worker.process for worker in self._by_index.values() if worker.process is not None]

    def add(self, index: int, spawn: int, remote: bool = False) -> WorkerProcess:
        """A process reports for the first time. It is a member only while no host has reported, or may still report."""
        worker = self._by_index.pop(index, None) or Worker(index)
        self._by_index[index] = worker  # the last in order
        if (self._awaits_hosts or not self._any_host_reported) and worker.host is None:
            worker.is_member = True
        worker.process = WorkerProcess(index, spawn, remote)
        return worker.process

    def remove(self, process: WorkerProcess) -> None:
        """Remove a dead process of which nothing is left."""
        self.of(process.index).process = None

    @property
    def has_remote(self) -> bool:
        """Whether processes of other hosts are there."""
        return any(process.remote for process in self.processes())

    # members

    @property
    def members(self) -> set[int]:
        """Indexes of the workers that are there, or will be again."""
        return {worker.index for worker in self if worker.is_member}

    def _members_and_digests(self) -> dict[int, str]:
        return {worker.index: worker.acting for worker in self if worker.is_member}

    def have_failed(self, indexes: Collection[int]) -> bool:
        """Whether these are workers that the run continues without."""
        return bool(indexes) and all(self.has_failed(index) for index in indexes)

    def has_failed(self, index: int) -> bool:
        """Whether the run continues without this worker."""
        return index in self._failed

    def has_left(self, index: int) -> bool:
        """Whether it is no longer assigned to its host."""
        worker = self._by_index.get(index)
        return worker is not None and worker.host is not None and not worker.is_member

    def is_of(self, index: int, host: str) -> bool:
        """Whether `host` may send for the worker."""
        worker = self._by_index.get(index)
        return worker is None or worker.host in (host, None)

    def settle(self, host: str) -> None:
        """Nothing waits for the first report of this host any more."""
        self._settled.add(host)

    def is_settled(self, host: str) -> bool:
        """Whether its members are known: it has reported, was removed, or is not expected."""
        return host in self._settled

    def await_hosts(self) -> None:
        """Until `end_wait` a worker that no host has reported is a member: its agent may come later than it does."""
        self._awaits_hosts = True

    def end_wait(self) -> bool:
        """Remove members that no host has confirmed. True when there were any."""
        self._awaits_hosts = False
        return self._any_host_reported and self._drop_unconfirmed()

    def _drop_unconfirmed(self) -> bool:
        """Its host may report after this one, so it has not left."""
        unconfirmed = [worker for worker in self if worker.is_member and worker.host is None]
        for worker in unconfirmed:
            worker.is_member = False
        return bool(unconfirmed)

    def receive(
        self, host: str, workers: Iterable[int], failed: Iterable[int], alive: Iterable[int] = (), acting: str = ""
    ) -> bool:
        """A host's complete state; `alive` may name processes that must leave. True when it changed anything."""
        before = self._members_and_digests()
        self._any_host_reported = True
        self.settle(host)
        if not self._awaits_hosts:
            self._drop_unconfirmed()
        own, lost, running = (
            [self.of(index) for index in indexes if self.is_of(index, host)] for indexes in (workers, failed, alive)
        )
        any_new = not self._failed.issuperset(worker.index for worker in lost)
        for worker in self:
            worker.is_member = worker.is_member and worker.host != host
        for worker in own:
            worker.is_member = True
        self._failed.update(worker.index for worker in lost)
        for worker in (*own, *lost, *running):
            worker.acting = acting or (worker.acting if worker.host == host else "")
            worker.host = host
            worker.is_member = worker.is_member and worker.index not in self._failed
        return any_new or before != self._members_and_digests()

    def remove_left(self, host: str, alive: Container[int]) -> None:
        """Forget the workers of `host` that have left and are dead, and heartbeats of workers without a host.

        `alive`: of its last report; processes that it does not list were removed before.
        """
        for worker in list(self):
            is_its_own = worker.host == host or (worker.host is None and worker.peer is None)
            if is_its_own and not worker.is_member and worker.process is None and worker.index not in alive:
                del self._by_index[worker.index]


class _Sample(NamedTuple):
    at: float
    segments: int
    busy_s: float


class SegmentTimes:
    """Seconds that a worker steps for one segment, its waits excluded: the mean of the last `WINDOW_S`, or longer.

    The first segments of a process, up to its first report, do not count: they include what an env loads.
    """

    def __init__(self) -> None:
        self._samples: dict[int, tuple[int, deque[_Sample]]] = {}
        """Samples by worker: its spawn, and its counts where they changed."""

    def report(self, index: int, spawn: int, segments: int, busy_s: float, at: float) -> None:
        """What process `spawn` has sealed since its start, and the seconds that it stepped for that."""
        if not segments:
            return
        known = self._samples.get(index)
        if known is None or known[0] != spawn:
            known = self._samples[index] = spawn, deque()
        samples = known[1]
        if samples and samples[-1].segments >= segments:
            return
        samples.append(_Sample(at, segments, busy_s))
        while len(samples) > 2 and at - samples[1].at >= WINDOW_S and segments - samples[1].segments >= LEAST_SEGMENTS:
            samples.popleft()

    def of(self, index: int) -> float | None:
        """Seconds per segment; None while too little is known. Of a worker without vector envs: those of before."""
        known = self._samples.get(index)
        if known is None:
            return None
        first, last = known[1][0], known[1][-1]
        segments = last.segments - first.segments
        if segments < LEAST_SEGMENTS or last.at - first.at < LEAST_S:
            return None
        return (last.busy_s - first.busy_s) / segments
