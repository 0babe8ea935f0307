"""The hosts of a run as the launcher knows them, each with the processes of its agent. Pure: events in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Literal, TypeAlias

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.launch.boots import boots
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


Presence: TypeAlias = Literal["here", "kept", "gone"]
"""here: with its configured workers. kept: its agent stays without workers, and measures. gone: without an agent."""


@dataclass(eq=False)
class StaffingRule:
    """What the keys `only` and `yield_when` of a host have led to (`zmqrl.launch.staffing`)."""

    workers: int
    """As configured: those that it has while it is here."""
    presence: Presence = "here"
    """As the launcher has done it."""
    used_at: float | None = None
    """The last use by others, in monotonic seconds."""
    use: str = ""
    measured_by: int = 0
    """The incarnation of the agent that has measured last."""


@dataclass(eq=False)
class Absence:
    """How long a host is lost, and when it is connected to again (`zmqrl.launch.rejoining`), in monotonic seconds."""

    since: float
    next_at: float
    backoff_s: float
    """Doubles with each attempt, up to a limit."""
    ready_since: float | None = None
    """It has returned, and may be lost again soon."""


@dataclass(eq=False)
class HostRecord:
    """Everything that the launcher knows of one host of the run."""

    boot: Boot
    """What its agent is started with; the workers are those of `held`."""
    assigned: tuple[int, ...] = ()
    """Indexes of the workers that it is to have. Those of a host that is lost are replaced when it returns."""
    is_revoked: bool = False
    """The broker has removed these workers: with its next agent the host has others."""
    state: str = "connecting"
    """connecting, joining, ready, leaving, failed, lost, drained, ended.

    leaving: its agent ended with exit code 0, as at the end of a run; lost when the run continues.
    """
    cause: str = ""
    """Why it failed, was lost or has left."""
    fault: str = ""
    """The exception that its agent reported."""
    leaving_since: float | None = None
    """Monotonic time at which it was first seen to be leaving."""
    milliseconds: float | None = None
    """The broker's first answer."""
    sees_store: bool = True
    cpu: float | None = None
    """Cores in use, mean since the sample before."""
    cpu_sample: tuple[float, float] | None = None
    """Unix time and CPU seconds of that sample."""
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
    rule: StaffingRule | None = None
    """None: it is always here."""
    absence: Absence | None = None
    """None: it has not been lost, or has returned for good."""
    is_uninvited: bool = False
    """A connection file is to be written for it."""
    invitation: str = ""
    """Digest of the one-time token that it was given and has not used."""
    used_invitations: tuple[str, ...] = ()
    processes: dict[ProcessSlot, ProcessRecord] = field(default_factory=dict)
    """Of its present agent."""
    former_restarts: int = 0
    """Of workers that it has no more."""

    @property
    def host(self) -> str:
        """Its name."""
        return self.boot.host

    @property
    def section(self) -> HostSection:
        """Of the configuration."""
        return self.boot.plan.config.hosts.get(self.host, HostSection())

    @property
    def workers(self) -> int:
        """How many it is to have."""
        return len(self.assigned)

    @property
    def held(self) -> tuple[int, ...]:
        """Indexes of workers that the broker knows, or will."""
        return () if self.is_revoked else self.assigned

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
    def has_agent(self) -> bool:
        """Whether an agent of it has reported anything."""
        return self.incarnation > 0 or bool(self.processes)

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


class Hosts:
    """Changed by `handle` alone."""

    def __init__(self, plan: RunPlan) -> None:
        self._learner, self._lease_s = plan.config.learner.host, plan.config.limits.host_lease_s
        self._records = {host: HostRecord(boot, boot.workers) for host, boot in boots(plan).items()}
        self._others = frozenset(host for host, count in plan.workers.items() if count and host != LOCAL)
        self._rejoins = plan.config.rejoin == "auto"
        self.next_index = plan.total_workers
        """Of the next worker that is added: each index is used once."""
        self.listening: agent.BrokerAddresses | None = None
        """Where the broker is, for other hosts."""
        self.ending = False
        """An agent's end is not a loss from now on."""

    def __iter__(self) -> Iterator[HostRecord]:
        return iter(self._records.values())

    def __getitem__(self, host: str) -> HostRecord:
        return self._records[host]

    def get(self, host: str) -> HostRecord | None:
        """None: the run has no such host."""
        return self._records.get(host)

    @property
    def learner(self) -> HostRecord:
        """The host of learner and broker."""
        return self._records[self._learner]

    @property
    def processes(self) -> list[ProcessRecord]:
        """Of all hosts."""
        return [process for row in self for process in row.processes.values()]

    def process(self, role: Role, index: int) -> ProcessRecord | None:
        """The record of a process of any host."""
        slot = ProcessSlot(role, index)
        return next((row.processes[slot] for row in self if slot in row.processes), None)

    @property
    def missing(self) -> list[HostRecord]:
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
    def tokens(self) -> dict[str, str | None]:
        """Digest of each one-time token to the host that it admits; None: it was used."""
        used = {digest: None for row in self for digest in row.used_invitations}
        return {**used, **{row.invitation: row.host for row in self if row.invitation}}

    @property
    def awaits_return(self) -> bool:
        """Whether a host is to return: one that is away, or a lost one that is connected to again."""
        return any(row.away or self._is_rejoined(row) for row in self)

    @property
    def unusable_others(self) -> list[HostRecord]:
        """The hosts with workers besides `local`, if none of them could be used at the start; else none."""
        rows = [self._records[host] for host in sorted(self._others)]
        return rows if all(row.is_failed and not row.incarnation for row in rows) else []

    def _is_rejoined(self, row: HostRecord) -> bool:
        is_tried = self._rejoins and not row.section.manual and row is not self.learner
        return bool(is_tried and row.is_missing and row.incarnation and row.workers)

    def register(self, host: str, workers: Sequence[int]) -> HostRecord | None:
        """A host that SSH does not reach has joined, or left (no workers); None when it is another, or is gone."""
        row = self._records.get(host)
        if row is None or not row.section.manual or (workers and row.is_gone):
            return None
        left = "ended" if self.ending else "drained"
        row.state, row.assigned = ("ready" if workers else left), tuple(workers)
        row.cause = "" if workers or self.ending else LEFT
        return row

    def admit(self, boot: Boot) -> HostRecord:
        """A host joins the live run, or one that is gone has another section; `expect` gives it workers."""
        before = self._records.get(boot.host)
        record = self._records[boot.host] = HostRecord(boot, state="drained")
        if before is not None:
            before.remove(before.processes.values())
            record.incarnation, record.former_restarts = before.incarnation, before.former_restarts
            record.used_invitations = before.used_invitations
        return record

    def enrol(self, token: str, public: str) -> HostRecord | None:
        """A host that SSH does not reach has shown its token, by this digest; its agent has this key.

        None: the token was used, or is unknown.
        """
        row = next((row for row in self if token and row.invitation == token), None)
        if row is not None:
            row.invitation, row.used_invitations = "", (*row.used_invitations, token)
            self._introduce(row, "joining", public)
        return row

    def expect(self, host: str, workers: Sequence[int]) -> HostRecord:
        """It is to have these workers from now on."""
        row = self._records[host]
        row.assigned, row.is_revoked = tuple(workers), False
        return row

    def is_assigned(self, host: str, worker: int) -> bool:
        """Whether the host is to have this worker."""
        row = self._records.get(host)
        return row is not None and worker in row.assigned

    def stayed_away(self, now: float) -> list[Loss]:
        """Hosts whose agents ended in order `LEAVE_S` ago, or more, though the run continues. `now`: of one clock."""
        late = []
        for row in self:
            is_leaving = row.state == "leaving" and not self.ending
            row.leaving_since = (now if row.leaving_since is None else row.leaving_since) if is_leaving else None
            if row.leaving_since is not None and now - row.leaving_since >= LEAVE_S:
                late.append(row)
        losses = [self._lose(row, "lost", Loss(row.host, f"the host agent exited ({cause_of(0)})")) for row in late]
        return [loss for loss in losses if loss is not None]

    def handle(self, event: HostEvent) -> Loss | None:
        """Take one event in; what it means for the run, if a host is lost by it."""
        row = self._records.get(event.host)
        if row is None:
            return None
        row.received_at = event.at
        loss: Loss | None = self._take(event.event, row, event)
        return loss

    @singledispatchmethod
    def _take(self, message: object, row: HostRecord, event: HostEvent) -> Loss | None:
        """By the type of `message`, which is `event.event`; the others change nothing here."""
        return None

    def _lose(self, row: HostRecord, state: str, loss: Loss) -> Loss | None:
        if row.is_gone:
            return None
        row.state, row.cause = state, loss.cause
        is_new = loss.cause not in row.reported
        row.reported.add(loss.cause)
        return loss if is_new else Loss(loss.host, "")

    @_take.register
    def _on_agent(self, message: agent.Handshake, row: HostRecord, event: HostEvent) -> None:
        self._introduce(row, "ready" if row is self.learner else "joining", message.public)

    def _introduce(self, row: HostRecord, state: str, public: str) -> None:
        row.state, row.public, row.incarnation = state, public, row.incarnation + 1
        row.cause, row.fault, row.other_use = "", "", None

    @_take.register
    def _on_listening(self, message: agent.BrokerAddresses, row: HostRecord, event: HostEvent) -> None:
        self.listening = message

    @_take.register
    def _on_joined(self, message: agent.Joined, row: HostRecord, event: HostEvent) -> None:
        row.state, row.milliseconds, row.sees_store = "ready", message.milliseconds, message.store
        row.reported.clear()

    @_take.register
    def _on_fault(self, message: agent.Fault, row: HostRecord, event: HostEvent) -> None:
        if event.role is None:
            row.fault = message.error

    @_take.register
    def _on_unreachable(self, message: agent.Unreachable, row: HostRecord, event: HostEvent) -> Loss | None:
        fix = "open that port there, set learner.address, or set `tunnel: true` for this host"
        if row.section.tunnel:
            fix = "its tunnel ends at this machine, which must reach that port: open it, or set learner.address"
        if FULL_PACKETS in message.cause:
            fix = MTU_FIX
        cause = f"cannot connect to the learner's host: {message.cause}"
        return self._lose(row, "failed", Loss(row.host, cause, fix))

    @_take.register
    def _on_host_failed(self, message: agent.HostUnusable, row: HostRecord, event: HostEvent) -> Loss | None:
        return self._lose(row, "failed", Loss(row.host, message.cause, message.fix))

    @_take.register
    def _on_lease_lost(self, message: agent.LeaseLost, row: HostRecord, event: HostEvent) -> Loss | None:
        if row.state == "connecting":
            return None  # of its former agent
        cause = f"no {message.source} heartbeat for limits.host_lease_s ({self._lease_s:g} s): the host agent ended"
        return self._lose(row, "lost", Loss(row.host, cause))

    @_take.register
    def _on_host_lost(self, message: agent.HostLost, row: HostRecord, event: HostEvent) -> Loss | None:
        lost = self._records.get(message.host)
        cause = f"the broker received no message from it for limits.host_lease_s ({self._lease_s:g} s)"
        return None if lost is None else self._lose(lost, "lost", Loss(lost.host, cause))

    @_take.register
    def _on_agent_exit(self, message: agent.AgentExited, row: HostRecord, event: HostEvent) -> Loss | None:
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
        cause = row.fault or f"the host agent exited ({how})"
        return self._lose(row, "lost", Loss(row.host, cause))

    @_take.register
    def _on_acting(self, message: agent.ActingDigest, row: HostRecord, event: HostEvent) -> None:
        row.acting = message.digest

    @_take.register
    def _on_gpus(self, message: agent.GpuUse, row: HostRecord, event: HostEvent) -> None:
        row.gpus = message.gpus

    @_take.register
    def _on_other_use(self, message: agent.OtherUse, row: HostRecord, event: HostEvent) -> None:
        row.other_use = message

    @_take.register
    def _on_usage(self, message: agent.Usage, row: HostRecord, event: HostEvent) -> None:
        used = message.processes.values()
        cpu, before = sum(process.cpu for process in used), row.cpu_sample
        if before is not None and event.at > before[0] and cpu >= before[1]:
            row.cpu = (cpu - before[1]) / (event.at - before[0])
        row.cpu_sample = (event.at, cpu)
        row.pss_mb = sum(process.pss_mb for process in used)
