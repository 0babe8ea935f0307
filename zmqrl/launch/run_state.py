"""What the launcher knows of a run. Pure: events in; views, `status.json` and the summary read it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zmqrl.config.plan import RunPlan
from zmqrl.launch.host_table import HostTable, Loss
from zmqrl.launch.problem import Problem
from zmqrl.orchestrators.base import HostEvent
from zmqrl.supervision.restarts import BAD_CONFIGURATION

Bottleneck = Literal["workers", "learner", "bus", "store"]
BOTH_WAIT = 1.25
"""Learner and workers may wait in turns (sum 1); if both wait at once, it is what lies between them."""
STORE_HOLDS = 0.3
RETURNS_KEPT = 60


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
    hosts: HostTable = field(init=False)
    stored: int = 0
    """Rows in the books of this arena: the learner counts `env_steps` when it uses them."""
    refused_messages: dict[str, int] = field(default_factory=dict)
    """By reason: what strangers, and who does not keep to the protocol, have sent."""
    _last_exit: dict[tuple[str, int], HostEvent] = field(default_factory=dict)
    _restarted_at: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """By host, role and index: unix times within the window."""

    def __post_init__(self) -> None:
        self.hosts = HostTable(self.plan)

    def handle(self, event: HostEvent) -> None:
        """Take one event in; an unknown one changes nothing."""
        self.hosts.ending = self.hosts.ending or bool(self.ended)
        loss = self.hosts.handle(event)
        if loss is not None:
            self._lose(loss)
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
        enough = self.ready_workers >= max(self.expected_workers, self.plan.config.min_workers)
        return ("learner", 0) in self.ready and (enough or self.plan.config.run.mode == "single")

    @property
    def expected_workers(self) -> int:
        """Workers of the hosts that have not failed."""
        return sum(row.workers for row in self.hosts if not row.is_gone)

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
        if event.data.get("stored") is not None:
            self.stored = event.data["stored"]

    def _on_exit(self, event: HostEvent) -> None:
        place = (event.data["role"], event.data["index"])
        row = self._row(event)
        if row is not None:
            row.state = "ended" if event.data["expected"] else "down"
            if not self.ended:
                self.ready.discard(place)
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
        when = f"in {event.data['in_s']:g} s" if event.data["in_s"] else "at once"
        self._note(event, f"it is started again {when}{self._how_often(event)}")

    def _on_gave_up(self, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            row.state = "given up"
        self._note(event, f"{self._why_given_up(event)}; {self._without(event.data['role'])}")

    def _how_often(self, event: HostEvent) -> str:
        """From the second restart on: how many it has left, as its agent counts them."""
        restart = self.plan.config.restart
        times = self._restarted_at.setdefault((event.host, event.data["role"], event.data["index"]), [])
        times[:] = [at for at in times if event.at - at < restart.window_s] + [event.at]
        if len(times) >= restart.max:
            return f", for the last time within {restart.window_s:g} s (restart.max {restart.max})"
        return f" (restart {len(times)} of {restart.max} within {restart.window_s:g} s)" if len(times) > 1 else ""

    def _why_given_up(self, event: HostEvent) -> str:
        died = self._last_exit.get((event.data["role"], event.data["index"]), event)
        if died.data.get("code") == BAD_CONFIGURATION:
            return f"it is given up: exit code {BAD_CONFIGURATION} is bad configuration, which no restart mends"
        restart = self.plan.config.restart
        return f"it is given up after {restart.max} restarts within {restart.window_s:g} s"

    def _without(self, role: str) -> str:
        """What becomes of the run when a process of that role does not come back."""
        if role == "evaluator":
            return "the run goes on, and nothing is scored any more"
        if role != "worker":
            return "the run ends"
        counted_on = [row.state for row in self.workers.values() if row.state not in ("ended", "lost")]
        if set(counted_on) <= {"given up"} and len(counted_on) >= self.expected_workers:
            return "no rollout worker is left, and the run ends"
        return self._where_its_envs_go

    @property
    def _where_its_envs_go(self) -> str:
        return f"its vector envs {'go to the other workers' if self.plan.config.run.mode == 'sync' else 'end with it'}"

    def note(self, problem: Problem) -> None:
        """What the launcher found by itself."""
        self.problems.append(problem)

    def _on_agent(self, event: HostEvent) -> None:
        """A new agent counts restarts from none."""
        self._restarted_at = {place: times for place, times in self._restarted_at.items() if place[0] != event.host}

    def _on_problem(self, event: HostEvent) -> None:
        """Something failed that killed nobody."""
        where = f"{event.host}/{event.data['role']}-{event.data['index']}"
        log = Path(self.plan.run_dir) / "logs" / f"{event.host}-{event.data['role']}-{event.data['index']}.log"
        self.problems.append(Problem(where, str(event.data["cause"]), str(event.data["done"]), log=str(log)))

    def _on_failed(self, event: HostEvent) -> None:
        self.failure = self.failure or str(event.data["cause"])
        if self.problems:
            self.failure = f"{event.data['cause']}\n{self.problems[-1]}"

    def _on_fault(self, event: HostEvent) -> None:
        if "role" not in event.data and event.host == self.plan.config.learner.host:
            self.agent_fault = str(event.data["error"])

    def _on_finished(self, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.finished = dict(event.data)
        for role, peak in event.data["peak_pss_mb"].items():
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), peak)

    def _on_joined(self, event: HostEvent) -> None:
        path = self.plan.config.store.path
        if path is not None and not event.data["store"]:
            cause = f"it does not see store.path {path} as the learner's host does"
            mend = "weights come through the broker instead; mount it there, or leave it at that"
            self.problems.append(Problem(event.host, cause, mend))

    def invite(self, host: str, text: str) -> None:
        """A host that is waited for, and what its user has to do."""
        self.problems.append(Problem(host, "it joins by hand", text))

    def _on_host_here(self, event: HostEvent) -> None:
        """The broker's word for hosts whose events do not come to this launcher."""
        row = self.hosts.greet(str(event.data["here"]), len(event.data["workers"]))
        if row is None:
            return
        for index in event.data["workers"]:
            self.workers.setdefault(index, WorkerRow(row.host, index, "ready"))
            self.ready.add(("worker", index))

    def _on_warning(self, event: HostEvent) -> None:
        self.problems.append(Problem(event.host, str(event.data["text"]), "the run goes on with it"))

    def _on_refused(self, event: HostEvent) -> None:
        before, self.refused_messages = sum(self.refused_messages.values()), dict(event.data["counts"])
        if not before:
            said = ", ".join(f"{count} x {reason}" for reason, count in self.refused_messages.items())
            where = f"{event.host}/broker-0"
            self.problems.append(Problem(where, f"refused: {said}", "it is counted, and the run goes on"))

    def _lose(self, loss: Loss) -> None:
        for worker in [worker for worker in self.workers.values() if worker.host == loss.host]:
            worker.state = "lost"
            self.ready.discard(("worker", worker.index))
        if loss.host == self.plan.config.learner.host:
            self.agent_fault = self.agent_fault or loss.cause
            return
        others = "no host with workers is left"
        if self.hosts.can_go_on:
            others = f"the run goes on without it; {self._where_its_envs_go}"
        done = f"{loss.mend}; {others}" if loss.mend else others
        self.problems.append(Problem(loss.host, loss.cause, done))

    def _on_lease_lost(self, event: HostEvent) -> None:
        """The learner's host ended in good order, and yet not because the run was at its end."""
        if event.host == self.plan.config.learner.host and not self.hosts.ending:
            self.failure = self.failure or f"{event.host}: {self.hosts.learner.cause}"

    def _on_agent_exit(self, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.agent_exit = 1 if event.data["code"] is None else int(event.data["code"])

    def _cause(self, event: HostEvent) -> str:
        return f"{event.host}/{event.data['role']}-{event.data['index']}: {event.data['cause']}"

    def _note(self, event: HostEvent, done_about_it: str) -> None:
        died = self._last_exit.get((event.data["role"], event.data["index"]), event)
        where = f"{event.host}/{event.data['role']}-{event.data['index']}"
        self.problems.append(
            Problem(
                where=where,
                cause=str(died.data.get("cause", "ended")),
                done_about_it=done_about_it,
                detail=died.data.get("detail", {}),
                log=str(died.data.get("log", "")),
                log_tail=tuple(died.data.get("log_tail", ())),
            )
        )
