"""The launcher's state of a run: events in; views, `status.json` and the summary read it. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zmqrl.config.codec import replace
from zmqrl.config.hosts import is_remote
from zmqrl.config.plan import RunPlan
from zmqrl.launch.run.host_records import ProcessRecord
from zmqrl.launch.run.hosts import Hosts
from zmqrl.messages.agent import HostFinished
from zmqrl.messages.process import LearnerEnded, Resumed, VersionScore
from zmqrl.orchestrators.base import HostEvent
from zmqrl.run_files.lineage import LastSeen
from zmqrl.summary import RestartCause
from zmqrl.supervision.process_table import cause_of
from zmqrl.supervision.restarts import ProcessSlot, without_numbers
from zmqrl.views.problem import Problem

STOP = "stop"
"""Reason of an end that was requested."""
RETURNS_KEPT = 60
PROBLEMS_KEPT = 1000
CAUSES_KEPT = 5
"""Causes of restarts in the summary."""
CAUSE_CHARACTERS = 500
UNREPORTED = "ended"
"""The cause of an end that was not reported."""


@dataclass
class RunState:
    """The facts of a run, from events. What is known of a host or a process is in its record (`hosts`)."""

    plan: RunPlan
    now: float = field(init=False)
    """Monotonic time of the last input of the machine."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURNS_KEPT))
    score: VersionScore | None = None
    ended: LearnerEnded | None = None
    finished: HostFinished | None = None
    """Last event of the learner's host."""
    first_step_s: float | None = None
    """`wall_s` at the first env step of the attempt."""
    restarts: int = 0
    peak_pss_mb: dict[str, float] = field(default_factory=dict)
    problems: deque[Problem] = field(default_factory=lambda: deque(maxlen=PROBLEMS_KEPT))
    """The last ones."""
    noted: int = 0
    """Problems, also those that are not kept."""
    failure: str | None = None
    """The first cause, once the run cannot continue."""
    lacks_hosts: bool = False
    """The failure is that the learner's host, or all other hosts at the start, were lost or could not be used."""
    refused: str | None = None
    """The first error of a process that rejected the configuration; None once the run has env steps without it. The
    learner may reject it later too: it compiles its first update."""
    last_failed_worker: str | None = None
    """`host/worker-index: cause` of the last one that reached its restart limit."""
    agent_fault: str | None = None
    agent_exit: int | None = None
    """Exit code of the learner's host's agent: with it the run is over."""
    hosts: Hosts = field(init=False)
    pause_cause: str = ""
    """Why the workers get no leases: fewer than `min_workers` are ready. Empty: the run is not paused."""
    writing_reports: int = 0
    """How often the learner has reported that it is writing a checkpoint."""
    stored: int = 0
    """Rows in the stream records of this arena: the learner counts `env_steps` when it uses them."""
    last_seen: LastSeen | None = None
    """Recorded progress of earlier attempts, for a resume."""
    resumed_from: Resumed | None = None
    """The FULL that the learner resumed from."""
    refused_by: dict[str, Counter[str]] = field(default_factory=dict)
    """Refused messages by place, then reason: of unknown senders, and of others that do not keep to the protocol."""
    tracebacks: set[str] = field(default_factory=set)
    """Causes whose traceback was reported, of any process."""
    _noted_once: set[str] = field(default_factory=set)
    _restart_causes: dict[tuple[str, str], RestartCause] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now, self.hosts = self.plan.began, Hosts(self.plan)

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the command until `now`. Steps of the clock do not count."""
        return self.now - self.plan.began

    @property
    def env_steps(self) -> int:
        """Stored so far, as last reported."""
        resumed = 0 if self.resumed_from is None else self.resumed_from.env_steps
        return int(self.figures.get("env_steps", resumed))

    @property
    def figures(self) -> Mapping[str, Any]:
        """What the learner reported last, by name: its metrics, updated by its final report."""
        return {**self.metrics, **({} if self.ended is None else msgspec.structs.asdict(self.ended))}

    @property
    def paused(self) -> bool:
        """Whether the workers get no leases."""
        return bool(self.pause_cause)

    @property
    def is_ending(self) -> bool:
        """Whether the run is stopped, at its end, or cannot continue."""
        return self.hosts.ending or self.ended is not None or self.failure is not None or self.agent_exit is not None

    def is_of_learners_host(self, event: HostEvent) -> bool:
        """Whether it comes from the host of learner and broker."""
        return event.host == self.plan.config.learner.host

    @property
    def has_begun(self) -> bool:
        """Whether the learner reported env steps or its end: from then on a refusal keeps the attempt."""
        return self.ended is not None or bool(self.metrics.get("env_steps"))

    @property
    def is_learner_ready(self) -> bool:
        """Whether the learner reported READY, and runs."""
        learner = self.hosts.learner.processes.get(ProcessSlot("learner", 0))
        return learner is not None and learner.is_ready

    @property
    def ready_workers(self) -> int:
        """Workers that reported READY and have not failed; in single the learner counts as one."""
        if self.plan.config.mode.in_process:
            return int(self.is_learner_ready)
        return sum(worker.is_ready for worker in self.hosts.workers.values())

    @property
    def all_ready(self) -> bool:
        """The learner and every worker of the hosts that have not failed."""
        enough = self.ready_workers >= max(self.hosts.expected_workers, self.required_workers)
        return self.is_learner_ready and (enough or self.plan.config.mode.in_process)

    @property
    def required_workers(self) -> int:
        """`min_workers`, or all workers of the hosts that are here now where others are to return."""
        least = self.plan.config.min_workers
        return min(least, self.hosts.remaining_workers) if any(row.away for row in self.hosts) else least

    @property
    def cut_off(self) -> str | None:
        """Why an engine had the learner's host end before the run was at its end; None: it did not."""
        at_its_end = self.ended is not None and self.ended.reason != STOP
        return self.hosts.learner.cause if self.finished and self.hosts.learner.is_failed and not at_its_end else None

    @property
    def no_hosts_reason(self) -> str | None:
        """Why the run cannot start or continue without further hosts; None while it can.

        A run that has one host alone ends with its workers by a decision of its agent.
        """
        learner = self.hosts.learner
        if not learner.is_gone and (learner.boot.is_alone or self.hosts.can_go_on):
            return None
        # what to do about the others was reported as a problem
        missing = [f"{row.host}: {(row is learner and self.agent_fault) or row.cause}" for row in self.hosts.missing]
        reason = "no usable host left"
        if self.hosts.expected_workers and not self.hosts.remaining_workers:
            reason = f"all rollout workers failed, the last was {self.last_failed_worker}"
        return "\n".join([reason, *missing])

    @property
    def lost_agent_cause(self) -> str | None:
        """How the agent of the learner's host ended, unless it reported the end of all processes."""
        if self.finished is not None:
            return None
        host = self.hosts.learner
        if self.agent_fault is not None:
            return f"the host agent of {host.host} failed: {self.agent_fault}"
        if self.agent_exit is None:
            return f"the host agent of {host.host} died"
        # SSH has -1 for every signal, and for a connection that was lost
        is_unknown = self.agent_exit == -1 and is_remote(host.host, host.section)
        how = "signal or lost connection" if is_unknown else cause_of(self.agent_exit)
        return f"the host agent of {host.host} exited unexpectedly: {how}"

    @property
    def refused_messages(self) -> dict[str, int]:
        """Counts of refused messages by reason, of all places."""
        return dict(sum(self.refused_by.values(), Counter()))

    @property
    def restart_causes(self) -> list[RestartCause]:
        """The most frequent causes of restarts, the most frequent first."""
        return sorted(self._restart_causes.values(), key=lambda cause: -cause.count)[:CAUSES_KEPT]

    def fail(self, cause: str, replaces: bool = False, lacks_hosts: bool = False) -> None:
        """The run cannot continue. The first cause is kept, unless this one explains it."""
        if replaces or self.failure is None:
            self.failure, self.lacks_hosts = cause, lacks_hosts

    def note(self, problem: Problem) -> None:
        """A problem, to be reported."""
        self.problems.append(problem)
        self.noted += 1

    def noted_since(self, noted: int) -> list[Problem]:
        """Problems after the first `noted`, as far as they are kept."""
        return list(self.problems)[max(0, len(self.problems) + noted - self.noted) :]

    def note_once(self, problem: Problem, noted: set[str] | None = None) -> None:
        """A problem that may be found again. `noted`: causes that were reported, by default those of the attempt."""
        noted = self._noted_once if noted is None else noted
        if problem.cause not in noted:
            noted.add(problem.cause)
            self.note(problem)

    def count_restart(self, process: ProcessRecord) -> None:
        """For the summary."""
        self.restarts += 1
        cause = UNREPORTED if process.last_exit is None else process.last_exit.cause.partition("\n")[0]
        key = (process.role, without_numbers(cause))
        before = self._restart_causes.get(key, RestartCause(process.role, cause[:CAUSE_CHARACTERS], 0))
        self._restart_causes[key] = replace(before, count=before.count + 1)

    def count_peaks(self, peak_pss_mb: Mapping[str, float]) -> None:
        """Record the peak memory of roles."""
        for role, peak in peak_pss_mb.items():
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), peak)
