"""The hosts of a run as the launcher knows them, each with the processes of its agent. Pure: events in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Literal, TypeAlias

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan, worker_indexes
from zmqrl.config.sections import HostSection
from zmqrl.launch.bottleneck import Relieved
from zmqrl.messages import agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.process_table import cause_of
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import Gpu, HostKey, Role
from zmqrl.wire.probe import FULL_PACKETS, MTU_FIX

LEAVE_S = 10.0
"""At the end of a run the other hosts may be known to have ended so much before the learner is."""

LEFT = "it has left, or its workers failed; see the output of `zmqrl worker` there"
"""Of a host that joined by a connection file: its events do not come to the launcher."""


ProcessState: TypeAlias = Literal["starting", "ready", "down", "failed", "ended", "lost"]
"""failed: it reached its restart limit. lost: with its host."""


@dataclass(eq=False)
class ProcessRecord:
    """What is known of one process of a host's present agent, until it was removed from the host and has ended."""

    host: str
    role: Role
    index: int
    state: ProcessState = "starting"
    is_ready: bool = False
    """It reported READY, and has neither ended during the run nor been lost since."""
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    wait_fraction: float = 0.0
    episodes: int = 0
    restarts: int = 0
    restarted_at: list[float] = field(default_factory=list)
    """Unix times, as far as they count for the restart limit."""
    last_exit: agent.Exited | None = None
    """The last one that was not expected."""
    spawn: int = 0
    judged: agent.State = "well"
    """How the broker judges this spawn."""
    relieved: Relieved | None = None
    """It has fewer vector envs than others because it is slower."""


@dataclass
class HostRow:
    """One host of the run."""

    host: str
    assigned: tuple[int, ...]
    """Indexes of the workers that it is to have. Those of a host that is lost are replaced when it returns."""
    state: str = "connecting"
    """connecting, joining, ready, leaving, failed, lost, drained, ended.

    leaving: its agent ended with exit code 0, as at the end of a run; lost when the run continues.
    """
    cause: str = ""
    """Why it failed, was lost or has left."""
    milliseconds: float | None = None
    """The broker's first answer."""
    sees_store: bool = True
    cpu: float | None = None
    """Cores in use, mean since the sample before."""
    pss_mb: float | None = None
    received_at: float | None = None
    """Unix time of its last event."""
    gpus: list[Gpu] = field(default_factory=list)
    """As last reported."""
    acting: str = ""
    """Digest of what acting computes there; empty: not known."""
    public: str = ""
    """The public key of its agent; an agent that is started again has another."""
    incarnation: int = 0
    """How many agents it has had."""
    away: str = ""
    """Why it has no workers for now, by its keys `only` and `yield_when`."""
    is_kept: bool = False
    """Its agent stays without workers."""
    other_use: agent.OtherUse | None = None
    """What others do there."""
    reported: set[str] = field(default_factory=set)
    """Why it was lost and could not be connected to again, since it was last ready."""
    processes: dict[ProcessSlot, ProcessRecord] = field(default_factory=dict)
    """Of its present agent."""
    former_restarts: int = 0
    """Of workers that it has no more."""

    @property
    def workers(self) -> int:
        """How many it is to have."""
        return len(self.assigned)

    @property
    def worker_records(self) -> list[ProcessRecord]:
        """Its rollout workers that are known."""
        return [process for process in self.processes.values() if process.role == "worker"]

    def record(self, slot: ProcessSlot) -> ProcessRecord:
        """The record of a process; made at its first event."""
        return self.processes.get(slot) or self.processes.setdefault(
            slot, ProcessRecord(self.host, slot.role, slot.index)
        )

    def remove(self, processes: Iterable[ProcessRecord]) -> None:
        """Their indexes are not used again, or are those of a former agent."""
        for process in list(processes):
            self.former_restarts += process.restarts if process.role == "worker" else 0
            del self.processes[ProcessSlot(process.role, process.index)]

    def set_workers(self, state: ProcessState) -> None:
        """Of a host that is gone."""
        for worker in self.worker_records:
            worker.state, worker.is_ready = state, False

    @property
    def is_failed(self) -> bool:
        """Whether the orchestrator reported it as unusable."""
        return self.state == "failed"

    @property
    def is_missing(self) -> bool:
        """It does not participate, though it should."""
        return self.state in ("failed", "lost")

    @property
    def is_gone(self) -> bool:
        """It does not participate any more."""
        return self.state in ("failed", "lost", "drained", "ended")


@dataclass(frozen=True)
class Loss:
    """A host that is not there, though it should be."""

    host: str
    cause: str
    """Empty: as reported before, by an earlier attempt to connect to it again."""
    fix: str = ""


class HostTable:
    """Changed by `handle` alone."""

    def __init__(self, plan: RunPlan) -> None:
        self._learner, self._lease_s = plan.config.learner.host, plan.config.limits.host_lease_s
        assigned = {host: tuple(indexes) for host, indexes in worker_indexes(plan.workers).items() if indexes}
        self._rows = {host: HostRow(host, indexes) for host, indexes in {self._learner: (), **assigned}.items()}
        self._others = frozenset(host for host, count in plan.workers.items() if count and host != LOCAL)
        self._tunnelled = {name for name, host in plan.config.hosts.items() if host.tunnel}
        self._manual = {name for name, host in plan.config.hosts.items() if host.manual}
        self._rejoins = plan.config.rejoin == "auto"
        self._faults: dict[str, str] = {}
        self._leaving_since: dict[str, float] = {}
        self._cpu_at: dict[str, tuple[float, float]] = {}
        self.listening: agent.BrokerAddresses | None = None
        """Where the broker is, for other hosts."""
        self.ending = False
        """An agent's end is not a loss from now on."""

    def __iter__(self) -> Iterator[HostRow]:
        return iter(self._rows.values())

    def __getitem__(self, host: str) -> HostRow:
        return self._rows[host]

    def get(self, host: str) -> HostRow | None:
        """None: the run has no such host."""
        return self._rows.get(host)

    @property
    def learner(self) -> HostRow:
        """The host of learner and broker."""
        return self._rows[self._learner]

    @property
    def processes(self) -> list[ProcessRecord]:
        """Of all hosts."""
        return [process for row in self for process in row.processes.values()]

    def process(self, role: Role, index: int) -> ProcessRecord | None:
        """The record of a process of any host."""
        slot = ProcessSlot(role, index)
        return next((row.processes[slot] for row in self if slot in row.processes), None)

    @property
    def missing(self) -> list[HostRow]:
        """Hosts that are not part of the run, though the launcher has not removed them."""
        return [row for row in self if row.is_gone and row.cause]

    @property
    def keys(self) -> dict[str, HostKey]:
        """Public key to host: of the other hosts that participate now."""
        return {
            row.public: HostKey(row.host, row.incarnation)
            for row in self
            if row is not self.learner and row.state in ("joining", "ready") and row.public
        }

    @property
    def awaits_return(self) -> bool:
        """Whether a host is to return: one that is away, or a lost one that is connected to again."""
        return any(row.away or self._is_rejoined(row) for row in self)

    @property
    def unusable_others(self) -> list[HostRow]:
        """The hosts with workers besides `local`, if none of them could be used at the start; else none."""
        rows = [self._rows[host] for host in sorted(self._others)]
        return rows if all(row.is_failed and not row.incarnation for row in rows) else []

    def _is_rejoined(self, row: HostRow) -> bool:
        is_tried = self._rejoins and row.host not in self._manual and row is not self.learner
        return bool(is_tried and row.is_missing and row.incarnation and row.workers)

    def register(self, host: str, workers: Sequence[int]) -> HostRow | None:
        """A host that SSH does not reach has joined, or left (no workers); None when it is another, or is gone."""
        row = self._rows.get(host)
        if row is None or host not in self._manual or (workers and row.is_gone):
            return None
        left = "ended" if self.ending else "drained"
        row.state, row.assigned = ("ready" if workers else left), tuple(workers)
        row.cause = "" if workers or self.ending else LEFT
        return row

    def admit(self, host: str, section: HostSection) -> None:
        """A host joins the live run, or one that is gone has another section; `expect` gives it workers."""
        before = self._rows.get(host)
        self._rows[host] = HostRow(host, (), "drained", incarnation=0 if before is None else before.incarnation)
        for named, applies in ((self._tunnelled, section.tunnel), (self._manual, section.manual)):
            named.discard(host)
            named.update({host} if applies else ())

    def enrol(self, host: str, public: str) -> None:
        """A host that SSH does not reach has shown its token; its agent has this key."""
        self._introduce(self._rows[host], "joining", public)

    def expect(self, host: str, workers: Sequence[int]) -> HostRow:
        """It is to have these workers from now on."""
        row = self._rows[host]
        row.assigned = tuple(workers)
        return row

    def is_assigned(self, host: str, worker: int) -> bool:
        """Whether the host is to have this worker."""
        row = self._rows.get(host)
        return row is not None and worker in row.assigned

    def stayed_away(self, now: float) -> list[Loss]:
        """Hosts whose agents ended in order `LEAVE_S` ago, or more, though the run continues. `now`: of one clock."""
        leaving = [row for row in self if row.state == "leaving" and not self.ending]
        self._leaving_since = {row.host: self._leaving_since.get(row.host, now) for row in leaving}
        late = [row for row in leaving if now - self._leaving_since[row.host] >= LEAVE_S]
        losses = [self._lose(row, "lost", Loss(row.host, f"the host agent exited ({cause_of(0)})")) for row in late]
        return [loss for loss in losses if loss is not None]

    def handle(self, event: HostEvent) -> Loss | None:
        """Take one event in; what it means for the run, if a host is lost by it."""
        row = self._rows.get(event.host)
        if row is None:
            return None
        row.received_at = event.at
        loss: Loss | None = self._take(event.event, row, event)
        return loss

    @singledispatchmethod
    def _take(self, message: object, row: HostRow, event: HostEvent) -> Loss | None:
        """By the type of `message`, which is `event.event`; the others change nothing here."""
        return None

    def _lose(self, row: HostRow, state: str, loss: Loss) -> Loss | None:
        if row.is_gone:
            return None
        row.state, row.cause = state, loss.cause
        is_new = loss.cause not in row.reported
        row.reported.add(loss.cause)
        return loss if is_new else Loss(loss.host, "")

    @_take.register
    def _on_agent(self, message: agent.Handshake, row: HostRow, event: HostEvent) -> None:
        self._introduce(row, "ready" if row is self.learner else "joining", message.public)

    def _introduce(self, row: HostRow, state: str, public: str) -> None:
        row.state, row.public, row.incarnation = state, public, row.incarnation + 1
        row.cause, row.other_use = "", None
        self._faults.pop(row.host, None)

    @_take.register
    def _on_listening(self, message: agent.BrokerAddresses, row: HostRow, event: HostEvent) -> None:
        self.listening = message

    @_take.register
    def _on_joined(self, message: agent.Joined, row: HostRow, event: HostEvent) -> None:
        row.state, row.milliseconds, row.sees_store = "ready", message.milliseconds, message.store
        row.reported.clear()

    @_take.register
    def _on_fault(self, message: agent.Fault, row: HostRow, event: HostEvent) -> None:
        if event.role is None:
            self._faults[row.host] = message.error

    @_take.register
    def _on_unreachable(self, message: agent.Unreachable, row: HostRow, event: HostEvent) -> Loss | None:
        fix = "open that port there, set learner.address, or set `tunnel: true` for this host"
        if row.host in self._tunnelled:
            fix = "its tunnel ends at this machine, which must reach that port: open it, or set learner.address"
        if FULL_PACKETS in message.cause:
            fix = MTU_FIX
        cause = f"cannot connect to the learner's host: {message.cause}"
        return self._lose(row, "failed", Loss(row.host, cause, fix))

    @_take.register
    def _on_host_failed(self, message: agent.HostUnusable, row: HostRow, event: HostEvent) -> Loss | None:
        return self._lose(row, "failed", Loss(row.host, message.cause, message.fix))

    @_take.register
    def _on_lease_lost(self, message: agent.LeaseLost, row: HostRow, event: HostEvent) -> Loss | None:
        if row.state == "connecting":
            return None  # of its former agent
        cause = f"no {message.source} heartbeat for limits.host_lease_s ({self._lease_s:g} s): the host agent ended"
        return self._lose(row, "lost", Loss(row.host, cause))

    @_take.register
    def _on_host_lost(self, message: agent.HostLost, row: HostRow, event: HostEvent) -> Loss | None:
        lost = self._rows.get(message.host)
        cause = f"the broker received no message from it for limits.host_lease_s ({self._lease_s:g} s)"
        return None if lost is None else self._lose(lost, "lost", Loss(lost.host, cause))

    @_take.register
    def _on_agent_exit(self, message: agent.AgentExited, row: HostRow, event: HostEvent) -> Loss | None:
        code = message.code
        if row.is_gone or (row.state == "connecting" and message.introduced):  # the latter of its former agent
            return None
        if self.ending or row is self.learner or (code == 0 and not row.workers and not row.is_kept):
            row.state = "drained" if not self.ending and row is not self.learner else "ended"
            return None
        if code == 0 and row.state == "ready":
            row.state = "leaving"
            return None
        how = "exit unknown" if code is None or code == -1 else cause_of(code)  # SSH has -1 for every signal
        cause = self._faults.get(row.host) or f"the host agent exited ({how})"
        return self._lose(row, "lost", Loss(row.host, cause))

    @_take.register
    def _on_acting(self, message: agent.ActingDigest, row: HostRow, event: HostEvent) -> None:
        row.acting = message.digest

    @_take.register
    def _on_gpus(self, message: agent.GpuUse, row: HostRow, event: HostEvent) -> None:
        row.gpus = message.gpus

    @_take.register
    def _on_other_use(self, message: agent.OtherUse, row: HostRow, event: HostEvent) -> None:
        row.other_use = message

    @_take.register
    def _on_usage(self, message: agent.Usage, row: HostRow, event: HostEvent) -> None:
        used = message.processes.values()
        cpu, before = sum(process.cpu for process in used), self._cpu_at.get(row.host)
        if before is not None and event.at > before[0] and cpu >= before[1]:
            row.cpu = (cpu - before[1]) / (event.at - before[0])
        self._cpu_at[row.host] = (event.at, cpu)
        row.pss_mb = sum(process.pss_mb for process in used)
