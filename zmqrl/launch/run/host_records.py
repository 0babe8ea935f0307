"""What the launcher knows of one host, with the processes of its present agent. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.messages.agent import Exited, OtherUse
from zmqrl.messages.command import Join
from zmqrl.messages.process import State
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import Gpu, Role

Presence: TypeAlias = Literal["here", "kept", "gone"]
"""here: with its configured workers. kept: its agent stays without workers, and measures. gone: without an agent."""
SILENT_S, SILENT_HEARTBEATS = 5.0, 3
"""A host is silent after so long, and so many heartbeats."""
HostState: TypeAlias = Literal["connecting", "joining", "ready", "leaving", "failed", "lost", "drained", "ended"]
"""leaving: its agent ended with exit code 0, as at the end of a run; lost when the run continues."""
ProcessState: TypeAlias = Literal["starting", "ready", "down", "failed", "ended", "lost"]
"""failed: it reached its restart limit. lost: with its host."""


@dataclass(eq=False)
class StaffingRule:
    """What the keys `only` and `yield_when` of a host have led to (`zmqrl.launch.run.staffing`)."""

    workers: int
    """Configured number of workers: those that the host has while it is here."""
    presence: Presence = "here"
    """Presence of the host, as the launcher has put it into effect."""
    used_at: float | None = None
    """The last use by others, in monotonic seconds."""
    use: str = ""
    measured_by: int = 0
    """The incarnation of the agent that has measured last."""


@dataclass(eq=False)
class Absence:
    """How long a host is lost, and when it is connected to again (`launch.run.rejoining`), in monotonic seconds."""

    since: float
    next_at: float
    backoff_s: float
    """Doubles with each attempt, up to a limit."""
    ready_since: float | None = None
    """Time since which the host is ready again; it may be lost again soon."""


@dataclass(frozen=True)
class Relieved:
    """A worker of a sync run has fewer vector envs than the others: the broker has moved them by speed."""

    factor: float
    """Its time for a segment by the median of the others, when they were moved."""
    vector_envs: int


@dataclass(eq=False)
class ProcessRecord:
    """What is known of one process of a host's present agent, until it was removed from the host and has ended."""

    host: str
    role: Role
    index: int
    state: ProcessState = "starting"
    is_ready: bool = False
    """Whether the process reported READY, and has neither ended during the run nor been lost since."""
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    wait_fraction: float = 0.0
    episodes: int = 0
    restarts: int = 0
    restarted_at: list[float] = field(default_factory=list)
    """Unix times, as far as they count for the restart limit."""
    last_exit: Exited | None = None
    """The last one that was not expected."""
    spawn: int = 0
    judged: State = "well"
    """How the broker judges this spawn."""
    relieved: Relieved | None = None
    """Reduced load of a worker that has fewer vector envs than others because it is slower; None: not reduced."""

    def __str__(self) -> str:
        return f"{self.host}/{self.role}-{self.index}"


@dataclass(eq=False)
class HostRecord:
    """Everything that the launcher knows of one host of the run."""

    boot: Boot
    """What its agent is started with; the workers are those of `held`."""
    assigned: tuple[int, ...] = ()
    """Indexes of the workers that it is to have. Those of a host that is lost are replaced when it returns."""
    is_revoked: bool = False
    """The broker has removed these workers: with its next agent the host has others."""
    state: HostState = "connecting"
    cause: str = ""
    """Why it failed, was lost or has left."""
    fault: str = ""
    """The exception that its agent reported."""
    leaving_since: float | None = None
    """Monotonic time at which it was first seen to be leaving."""
    milliseconds: float | None = None
    """The broker's first answer."""
    address: str = ""
    """At which it has joined the broker."""
    sees_store: bool = True
    cpu: float | None = None
    """Cores in use, mean since the sample before."""
    cpu_sample: tuple[float, float] | None = None
    """Unix time and CPU seconds of that sample."""
    pss_mb: float | None = None
    received_at: float | None = None
    """Unix time of its last event."""
    gpus: list[Gpu] = field(default_factory=list)
    """GPUs of the host, as last reported."""
    acting: str = ""
    """Digest of what acting computes there; empty: not known."""
    public: str = ""
    """The public key of its agent; an agent that is started again has another."""
    listed_at: int = 0
    """The first serial of the allow-list that has this key."""
    joins: Join | None = None
    """What its agent was sent."""
    incarnation: int = 0
    """How many agents it has had."""
    away: str = ""
    """Why it has no workers for now, by its keys `only` and `yield_when`."""
    is_kept: bool = False
    """Its agent stays without workers."""
    other_use: OtherUse | None = None
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
    """Processes of the host's present agent."""
    former_restarts: int = 0
    """Restarts of workers whose records were removed."""

    @property
    def host(self) -> str:
        """Its name."""
        return self.boot.host

    @property
    def section(self) -> HostSection:
        """Section of the host in the configuration."""
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
        new = ProcessRecord(self.host, slot.role, slot.index)
        return self.processes.get(slot) or self.processes.setdefault(slot, new)

    def record_of(self, event: HostEvent) -> ProcessRecord:
        """The record of the process that the event names."""
        assert event.role is not None, "an event about a process names it"
        return self.record(ProcessSlot(event.role, event.index or 0))

    def has_process(self, role: Role | None, index: int | None) -> bool:
        """Whether an event may be about this process: of workers only those that it has, or is to have."""
        if role != "worker" or index is None or index in self.assigned:
            return True
        return ProcessSlot(role, index) in self.processes

    def remove_left(self) -> None:
        """Remove workers that were taken from it and have no process; those of a lost host are shown."""
        left = [worker for worker in self.worker_records if worker.state in ("ended", "down", "failed")]
        self.remove(worker for worker in left if worker.index not in self.assigned)

    def drain(self) -> None:
        """The launcher ends the part of a host that is not reached by SSH."""
        self.state, self.cause, self.assigned = "drained", "", ()
        self.set_workers("ended")

    def readmitted(self, boot: Boot) -> HostRecord:
        """A record without workers and agent, which keeps what is counted over all agents of the host."""
        self.remove(self.processes.values())
        return HostRecord(
            boot,
            state="drained",
            incarnation=self.incarnation,
            used_invitations=self.used_invitations,
            former_restarts=self.former_restarts,
        )

    def begin_agent(self, state: HostState, public: str) -> None:
        """A new agent has this key and other processes, and counts restarts from none."""
        self.state, self.public, self.incarnation = state, public, self.incarnation + 1
        self.cause, self.fault, self.other_use, self.joins = "", "", None, None
        self.remove(self.processes.values())

    def remove(self, processes: Iterable[ProcessRecord]) -> None:
        """Their indexes are not used again, or are those of a former agent."""
        for process in list(processes):
            self.former_restarts += process.restarts if process.role == "worker" else 0
            del self.processes[ProcessSlot(process.role, process.index)]

    def set_workers(self, state: ProcessState) -> None:
        """What became of all of them."""
        for worker in self.worker_records:
            worker.state, worker.is_ready = state, False

    def is_silent(self, now: float) -> bool:
        """Whether the agent of a host in the run has sent nothing for some time, at unix time `now`."""
        silent_after_s = max(SILENT_S, SILENT_HEARTBEATS * self.boot.plan.config.limits.heartbeat_s)
        is_here = self.state == "ready" and self.received_at is not None
        return is_here and not self.section.manual and now - (self.received_at or now) >= silent_after_s

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
        """Whether the host does not participate, though it should."""
        return self.state in ("failed", "lost")

    @property
    def is_gone(self) -> bool:
        """Whether the host does not participate any more."""
        return self.state in ("failed", "lost", "drained", "ended")
