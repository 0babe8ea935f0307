"""What the launcher knows of a run. Pure: events in; views, `status.json` and the summary read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zmqrl.config.plan import RunPlan
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import BAD_CONFIGURATION

Bottleneck = Literal["workers", "learner", "bus", "store"]
BOTH_WAIT = 1.25
"""Learner and workers may wait in turns (sum 1); if both wait at once, it is what lies between them."""
STORE_HOLDS = 0.3
RETURNS_KEPT = 60
LOG_LINES_SHOWN = 12


@dataclass
class WorkerRow:
    """One rollout worker as the live view shows it."""

    host: str
    index: int
    state: str = "starting"
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    wait_fraction: float = 0.0
    episodes: int = 0
    restarts: int = 0


@dataclass
class HostRow:
    """One host of the run."""

    host: str
    workers: int
    """How many it is to hold."""
    state: str = "connecting"
    """connecting, joining, ready, failed, lost, drained, ended."""
    cause: str = ""
    """Why it failed or was lost."""
    address: str = ""
    """Of the learner's host, as this one reaches it."""
    milliseconds: float | None = None
    """The first answer from there."""
    sees_store: bool = True
    cpu: float | None = None
    """Cores in use, mean of the last sample."""
    pss_mb: float | None = None
    heard_at: float | None = None
    """Unix time of its last event."""

    @property
    def is_gone(self) -> bool:
        """It takes no part any more."""
        return self.state in ("failed", "lost", "drained", "ended")


@dataclass(frozen=True)
class Problem:
    """What died, where and why, and what was done about it."""

    where: str
    cause: str
    detail: Mapping[str, Any]
    log: str
    log_tail: tuple[str, ...]
    done_about_it: str

    def __str__(self) -> str:
        detail = ", ".join(f"{name} {value}" for name, value in self.detail.items())
        lines = [f"{self.where}: {self.cause}" + (f" ({detail})" if detail else "")]
        lines += [f"    {line}" for line in self.log_tail[-LOG_LINES_SHOWN:]]
        if self.log:
            lines.append(f"  log: {self.log}")
        return "\n".join([*lines, f"  {self.done_about_it}"])


@dataclass
class RunState:
    """Changed by `handle` alone."""

    plan: RunPlan
    workers: dict[int, WorkerRow] = field(default_factory=dict)
    ready: set[tuple[str, int]] = field(default_factory=set)
    metrics: dict[str, Any] = field(default_factory=dict)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURNS_KEPT))
    score: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    first_step_at: float | None = None
    restarts: int = 0
    peak_pss_mb: dict[str, float] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    failure: str | None = None
    """The first cause, once the run cannot go on."""
    refused: str | None = None
    """What a process that found the configuration bad said, while nothing was stored yet."""
    agent_fault: str | None = None
    agent_exit: int | None = None
    """Exit code of the learner's host's agent: with it the run is over."""
    hosts: dict[str, HostRow] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """What agents said before they failed."""
    listening: dict[str, Any] = field(default_factory=dict)
    """Where the broker is, for other hosts: addresses, ports, token."""
    refused_messages: dict[str, int] = field(default_factory=dict)
    """By reason: what strangers, and who does not keep to the protocol, have sent."""
    ending: bool = False
    """The launcher has asked the hosts to end."""
    _cpu_at: dict[str, tuple[float, float]] = field(default_factory=dict)
    _last_exit: dict[tuple[str, int], HostEvent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        learner = self.plan.config.learner.host
        counts = {learner: 0, **{host: count for host, count in self.plan.workers.items() if count}}
        self.hosts = {host: HostRow(host, count) for host, count in counts.items()}

    def handle(self, event: HostEvent) -> None:
        """Take one event in; an unknown one changes nothing."""
        row = self.hosts.get(event.host)
        if row is not None:
            row.heard_at = event.at
        handler = getattr(self, f"_on_{event.event}", None)
        if handler is not None:
            handler(event)

    @property
    def env_steps(self) -> int:
        """Stored so far, as last heard."""
        return int(self.ended.get("env_steps", self.metrics.get("env_steps", 0)))

    @property
    def ready_workers(self) -> int:
        """Workers that said READY and were not given up; in single the learner counts as one."""
        if self.plan.config.run.mode == "single":
            return int(("learner", 0) in self.ready)
        return sum(("worker", index) in self.ready for index in self.workers)

    @property
    def all_ready(self) -> bool:
        """The learner and every worker of the hosts that have not failed."""
        expected = sum(row.workers for row in self.hosts.values() if not row.is_gone)
        enough = self.ready_workers >= max(expected, self.plan.config.min_workers)
        return ("learner", 0) in self.ready and (enough or self.plan.config.run.mode == "single")

    @property
    def missing_hosts(self) -> list[HostRow]:
        """Hosts that are not part of the run, though they should be."""
        return [row for row in self.hosts.values() if row.state in ("failed", "lost")]

    @property
    def bottleneck(self) -> Bottleneck | None:
        """Who the others wait for, from their wait fractions; None while nobody measured."""
        known = {**self.metrics, **self.ended}
        learner_waits = known.get("wait_fraction")
        if learner_waits is None:
            return None
        waits = [row.wait_fraction for row in self.workers.values() if row.env_steps]
        workers_wait = sum(waits) / len(waits) if waits else 1.0 - learner_waits
        if known.get("store_wait_fraction", 0.0) > STORE_HOLDS:
            return "store"
        if learner_waits + workers_wait > BOTH_WAIT:
            return "bus"
        return "workers" if learner_waits >= workers_wait else "learner"

    def _row(self, event: HostEvent) -> WorkerRow | None:
        if event.data.get("role") != "worker":
            return None
        index = int(event.data["index"])
        return self.workers.setdefault(index, WorkerRow(event.host, index))

    def _on_started(self, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            row.state = "starting"

    def _on_ready(self, event: HostEvent) -> None:
        self.ready.add((event.data["role"], event.data["index"]))
        row = self._row(event)
        if row is not None:
            row.state = "ready"

    def _on_first_step(self, event: HostEvent) -> None:
        wall = float(event.data["wall"])
        self.first_step_at = wall if self.first_step_at is None else min(wall, self.first_step_at)

    def _on_worker(self, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            for name in ("env_steps", "env_steps_per_s", "wait_fraction", "episodes"):
                setattr(row, name, event.data.get(name, getattr(row, name)))

    def _on_metrics(self, event: HostEvent) -> None:
        self.metrics.update(event.data["values"])
        mean = event.data["values"].get("train_return_mean_100")
        if mean is not None:
            self.returns.append(float(mean))

    def _on_score(self, event: HostEvent) -> None:
        if not self.score.get("final"):
            self.score = dict(event.data)

    def _on_ended(self, event: HostEvent) -> None:
        self.ended = dict(event.data)

    def _on_usage(self, event: HostEvent) -> None:
        for name, used in event.data["processes"].items():
            role = name.rpartition("-")[0]
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), used["pss_mb"])
        if event.data.get("leases") is not None:
            self.metrics["leases"] = event.data["leases"]
        self._weigh(event)

    def _weigh(self, event: HostEvent) -> None:
        """Memory and processor time of a host."""
        row, used = self.hosts.get(event.host), event.data["processes"].values()
        if row is None:
            return
        now, cpu = event.at, sum(process["cpu"] for process in used)
        before = self._cpu_at.get(event.host)
        if before is not None and now > before[0] and cpu >= before[1]:
            row.cpu = (cpu - before[1]) / (now - before[0])
        self._cpu_at[event.host] = (now, cpu)
        row.pss_mb = sum(process["pss_mb"] for process in used)

    def _on_exit(self, event: HostEvent) -> None:
        place = (event.data["role"], event.data["index"])
        row = self._row(event)
        if row is not None:
            row.state = "ended" if event.data["expected"] else "down"
        crashed = event.data["role"] == "learner" and event.data["code"] not in (0, None)
        if event.data["expected"] and not crashed:
            return
        self.ready.discard(place)
        self._last_exit[place] = event
        if event.data["code"] == BAD_CONFIGURATION and self.env_steps == 0:
            self.refused = self.refused or str(event.data["cause"])
        if event.data["expected"]:
            self._note(event, "the run ends without its last checkpoint")
            self.failure = self.failure or self._cause(event)

    def _on_restart(self, event: HostEvent) -> None:
        self.restarts += 1
        row = self._row(event)
        if row is not None:
            row.restarts += 1
        self._note(event, f"it is started again in {event.data['in_s']:g} s")

    def _on_gave_up(self, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            row.state = "given up"
        self._note(event, f"it is given up after {self.plan.config.restart.max} restarts")

    def _on_failed(self, event: HostEvent) -> None:
        self.failure = self.failure or str(event.data["cause"])
        if self.problems:
            self.failure = f"{event.data['cause']}\n{self.problems[-1]}"

    def _on_fault(self, event: HostEvent) -> None:
        if "role" not in event.data:
            self.faults[event.host] = str(event.data["error"])
            if event.host == self.plan.config.learner.host:
                self.agent_fault = str(event.data["error"])

    def _on_finished(self, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.finished = dict(event.data)
        for role, peak in event.data["peak_pss_mb"].items():
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), peak)

    def _on_agent(self, event: HostEvent) -> None:
        if event.host in self.hosts:
            learner_here = event.host == self.plan.config.learner.host
            self.hosts[event.host].state = "ready" if learner_here else "joining"

    def _on_joined(self, event: HostEvent) -> None:
        row = self.hosts[event.host]
        row.state, row.address, row.milliseconds = "ready", event.data["address"], event.data["milliseconds"]
        row.sees_store = bool(event.data["store"])

    def _on_listening(self, event: HostEvent) -> None:
        self.listening = dict(event.data)

    def _on_warning(self, event: HostEvent) -> None:
        self.problems.append(Problem(event.host, str(event.data["text"]), {}, "", (), "the run goes on with it"))

    def _on_refused(self, event: HostEvent) -> None:
        before, self.refused_messages = sum(self.refused_messages.values()), dict(event.data["counts"])
        if not before:
            said = ", ".join(f"{count} x {reason}" for reason, count in self.refused_messages.items())
            where = f"{event.host}/broker-0"
            self.problems.append(Problem(where, f"refused: {said}", {}, "", (), "it is counted, and the run goes on"))

    def _on_unreachable(self, event: HostEvent) -> None:
        mend = "open that port there, name an address with learner.address, or set tunnel: true for this host"
        self._lose(event.host, "failed", f"it cannot reach the learner's host: {event.data['cause']}", mend)

    def _on_host_failed(self, event: HostEvent) -> None:
        self._lose(event.host, "failed", str(event.data["cause"]), "")

    def _on_lease_lost(self, event: HostEvent) -> None:
        limit_s = self.plan.config.limits.host_lease_s
        cause = (
            f"its agent did not hear the {event.data['source']} for limits.host_lease_s ({limit_s:g} s) and has ended"
        )
        self._lose(event.host, "lost", cause, "")

    def _on_host_lost(self, event: HostEvent) -> None:
        limit_s = self.plan.config.limits.host_lease_s
        cause = f"nothing was heard of it for limits.host_lease_s ({limit_s:g} s)"
        self._lose(str(event.data["lost"]), "lost", cause, "")

    def _lose(self, host: str, state: str, cause: str, mend: str) -> None:
        row = self.hosts.get(host)
        if row is None or row.is_gone:
            return
        row.state, row.cause = state, cause
        for worker in self.workers.values():
            if worker.host == host:
                worker.state = "lost"
                self.ready.discard(("worker", worker.index))
        if host == self.plan.config.learner.host:
            self.agent_fault = self.agent_fault or cause
            return
        others = "the run goes on without it" if self.can_go_on else "no host with workers is left"
        self.problems.append(Problem(host, cause, {}, "", (), f"{mend}; {others}" if mend else others))

    @property
    def can_go_on(self) -> bool:
        """Whether any host with workers is there, or may come."""
        return any(row.workers and not row.is_gone for row in self.hosts.values())

    def _on_agent_exit(self, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.agent_exit = int(event.data["code"] if event.data["code"] is not None else 1)
        row = self.hosts.get(event.host)
        if row is None or row.is_gone:
            return
        if self.ending or self.ended or event.host == self.plan.config.learner.host:
            row.state = "ended"
        elif event.data["code"] == 0 and not row.workers:
            row.state = "drained"
        else:
            said = self.faults.get(event.host)
            self._lose(event.host, "lost", said or f"its agent ended (exit {event.data['code']})", "")

    def _cause(self, event: HostEvent) -> str:
        return f"{event.host}/{event.data['role']}-{event.data['index']}: {event.data['cause']}"

    def _note(self, event: HostEvent, done_about_it: str) -> None:
        died = self._last_exit.get((event.data["role"], event.data["index"]), event)
        where = f"{event.host}/{event.data['role']}-{event.data['index']}"
        self.problems.append(
            Problem(
                where=where,
                cause=str(died.data.get("cause", "ended")),
                detail=died.data.get("detail", {}),
                log=str(died.data.get("log", "")),
                log_tail=tuple(died.data.get("log_tail", ())),
                done_about_it=done_about_it,
            )
        )
