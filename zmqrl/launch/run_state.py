"""The launcher's state of a run: events in; views, `status.json` and the summary read it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import replace
from zmqrl.config.hosts import is_remote
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.make import is_shared
from zmqrl.launch.bottleneck import Bottleneck, Relieved, Slowest, bottleneck, slowest, times
from zmqrl.launch.host_records import Hosts, Loss, ProcessRecord
from zmqrl.launch.lineage import LastSeen
from zmqrl.messages import agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.handshake import other_bits
from zmqrl.supervision.process_table import cause_of
from zmqrl.supervision.restarts import BAD_CONFIGURATION, ProcessSlot, without_numbers
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
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class RestartCause:
    """Why processes of a role were restarted. Causes that differ in numbers alone are one."""

    role: str
    """Of the processes."""
    cause: str
    """Of the first restart."""
    count: int
    """Restarts."""


@dataclass
class RunState:
    """The facts of a run, from events. What is known of a host or a process is in its record (`hosts`)."""

    plan: RunPlan
    metrics: dict[str, int | float] = field(default_factory=dict)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURNS_KEPT))
    score: agent.Score | None = None
    ended: agent.Ended | None = None
    finished: agent.Finished | None = None
    """Of the learner's host."""
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
    """Of a resume: the recorded progress of earlier attempts."""
    resumed_from: agent.Resumed | None = None
    """The FULL that the learner resumed from."""
    refused_messages: dict[str, int] = field(default_factory=dict)
    """By reason: what strangers, and who does not keep to the protocol, have sent."""
    _refused_by: dict[str, Counter[str]] = field(default_factory=dict)
    _differing: set[str] = field(default_factory=set)
    _faults: set[str] = field(default_factory=set)
    """Causes whose traceback was reported, of any process."""
    _restart_causes: dict[tuple[str, str], RestartCause] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts = Hosts(self.plan)

    def handle(self, event: HostEvent) -> None:
        """Take one event in."""
        self.hosts.ending = self.hosts.ending or self.ended is not None
        loss = self.hosts.handle(event)
        if loss is not None:
            self._lose(loss)
        if not self._is_of_removed_worker(event):
            self._take(event.event, event)

    def _is_of_removed_worker(self, event: HostEvent) -> bool:
        """It was on its way when the record of the worker was removed."""
        if event.role != "worker" or event.index is None or self.hosts.is_assigned(event.host, event.index):
            return False
        row = self.hosts.get(event.host)
        return row is None or ProcessSlot(event.role, event.index) not in row.processes

    @singledispatchmethod
    def _take(self, message: object, event: HostEvent) -> None:
        """By the type of `message`, which is `event.event`; the others change nothing here."""

    @property
    def wall_s(self) -> float:
        """Seconds since the start of the command. Steps of the clock do not count."""
        return time.monotonic() - self.plan.began

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

    @property
    def has_begun(self) -> bool:
        """Whether the learner reported env steps or its end: from then on a refusal keeps the attempt."""
        return self.ended is not None or bool(self.metrics.get("env_steps"))

    @property
    def workers(self) -> dict[int, ProcessRecord]:
        """Rollout workers of the newest agent of each host, by index, without those that have left."""
        return {worker.index: worker for row in self.hosts for worker in row.worker_records}

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
        return sum(worker.is_ready for worker in self.workers.values())

    @property
    def all_ready(self) -> bool:
        """The learner and every worker of the hosts that have not failed."""
        enough = self.ready_workers >= max(self.expected_workers, self.required_workers)
        return self.is_learner_ready and (enough or self.plan.config.mode.in_process)

    @property
    def expected_workers(self) -> int:
        """Workers of the hosts that have not failed."""
        return sum(row.workers for row in self.hosts if not row.is_gone)

    @property
    def required_workers(self) -> int:
        """`min_workers`, or all workers of the hosts that are here now where others are to return."""
        least = self.plan.config.min_workers
        return min(least, self.remaining_workers) if any(row.away for row in self.hosts) else least

    @property
    def remaining_workers(self) -> int:
        """Of `expected_workers` those that are restarted when they die."""
        failed = self.failed_workers
        return sum(index not in failed for row in self.hosts if not row.is_gone for index in row.assigned)

    @property
    def failed_workers(self) -> set[int]:
        """Indexes of the workers that reached their restart limit."""
        return {worker.index for worker in self.workers.values() if worker.state == "failed"}

    @property
    def can_go_on(self) -> bool:
        """Whether the run has a worker, or a host that is to return with workers."""
        return self.remaining_workers > 0 or self.hosts.awaits_return

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
        if not learner.is_gone and (learner.boot.is_alone or self.can_go_on):
            return None
        # what to do about the others was reported as a problem
        missing = [f"{row.host}: {(row is learner and self.agent_fault) or row.cause}" for row in self.hosts.missing]
        reason = "no usable host left"
        if self.expected_workers and not self.remaining_workers:
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
    def bottleneck(self) -> Bottleneck | None:
        """Who the others wait for, from their wait fractions; None without measurements."""
        known = self.figures
        learner_waits = known.get("wait_fraction")
        if learner_waits is None:
            return None
        workers = [row for row in self.workers.values() if row.state not in ("down", "failed", "lost")]
        return bottleneck(workers, learner_waits, known.get("store_wait_fraction", 0.0), self.slowest_worker)

    @property
    def relieved_workers(self) -> list[Relieved]:
        """Workers of a sync run that have fewer vector envs than others because they are slower."""
        workers = filter(_is_there, self.workers.values())
        return [worker.relieved for worker in workers if worker.relieved is not None]

    @property
    def hanging(self) -> Mapping[tuple[str, int], agent.State]:
        """Processes that the broker judges to be silent or without progress, by role and index."""
        judged = {(process.role, process.index): process.judged for process in self.hosts.processes}
        return {process: state for process, state in judged.items() if state != "well"}

    @property
    def restart_causes(self) -> list[RestartCause]:
        """The most frequent causes of restarts, the most frequent first."""
        return sorted(self._restart_causes.values(), key=lambda cause: -cause.count)[:CAUSES_KEPT]

    @property
    def slowest_worker(self) -> Slowest | None:
        """The worker that the others of a sync run wait for; None: none is clearly slower."""
        mode = self.plan.config.mode
        if not mode.deterministic or mode.in_process:
            return None
        return slowest(worker for worker in self.workers.values() if _is_there(worker))

    def _record(self, event: HostEvent) -> ProcessRecord | None:
        """Of the process that the event is about."""
        row = self.hosts.get(event.host)
        if row is None or event.role is None:
            return None
        return row.record(ProcessSlot(event.role, event.index or 0))

    @_take.register
    def _on_worker_state(self, message: agent.WorkerState, event: HostEvent) -> None:
        process = self.hosts.process(message.role, message.index)
        if process is not None and message.spawn >= process.spawn:
            process.spawn, process.judged = message.spawn, message.state

    @_take.register
    def _on_started(self, message: agent.Started, event: HostEvent) -> None:
        if event.role == "broker":  # it begins to judge
            for judged in self.hosts.processes:
                judged.judged = "well"
        process = self._record(event)
        if process is not None:
            process.spawn, process.judged, process.state = message.spawn, "well", "starting"

    @_take.register
    def _on_ready(self, message: agent.Ready, event: HostEvent) -> None:
        process = self._record(event)
        if process is not None:
            process.state, process.is_ready = "ready", True

    @_take.register
    def _on_first_step(self, message: agent.FirstStep, event: HostEvent) -> None:
        if self.first_step_s is None:
            self.first_step_s = self.wall_s

    @_take.register
    def _on_worker(self, message: agent.WorkerRates, event: HostEvent) -> None:
        process = self._record(event)
        if process is not None:
            process.env_steps, process.env_steps_per_s = message.env_steps, message.env_steps_per_s
            process.wait_fraction, process.episodes = message.wait_fraction, message.episodes

    @_take.register
    def _on_metrics(self, message: agent.Metrics, event: HostEvent) -> None:
        self.metrics.update(message.values)
        if self.has_begun:
            self.refused = None
        mean = message.values.get("train_return_mean_100")
        if mean is not None:
            self.returns.append(float(mean))

    @_take.register
    def _on_score(self, message: agent.Score, event: HostEvent) -> None:
        if self.score is None or not self.score.final:
            self.score = message

    @_take.register
    def _on_writing(self, message: agent.Writing, event: HostEvent) -> None:
        self.writing_reports += 1

    @_take.register
    def _on_resumed(self, message: agent.Resumed, event: HostEvent) -> None:
        self.resumed_from = message

    @_take.register
    def _on_ended(self, message: agent.Ended, event: HostEvent) -> None:
        self.ended = message

    @_take.register
    def _on_usage(self, message: agent.Usage, event: HostEvent) -> None:
        for name, used in message.processes.items():
            role = name.rpartition("-")[0]
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), used.pss_mb)
        if message.arena_usage is not None:
            self.metrics["leases"] = message.arena_usage.leases
            self.stored = message.arena_usage.stored

    @_take.register
    def _on_exit(self, message: agent.Exited, event: HostEvent) -> None:
        process = self._record(event)
        if process is None:
            return
        process.state = "ended" if message.expected else "down"
        crashed = event.role == "learner" and message.code not in (0, None)
        if message.expected and not crashed:
            process.is_ready = process.is_ready and (event.role != "worker" or self.ended is not None)
            return
        process.is_ready, process.last_exit = False, message
        if message.code == BAD_CONFIGURATION and (crashed or not self.has_begun):
            self.refused = self.refused or message.cause
        if message.expected:
            self._note(event, process, "the run ends without a final checkpoint")
            self.fail(f"{event.where}: {message.cause}")

    @_take.register
    def _on_restart(self, message: agent.Restarting, event: HostEvent) -> None:
        self.restarts += 1
        process = self._record(event)
        if process is None:
            return
        process.restarts += 1
        self._count_restart(process)
        when = f"in {message.in_s:g} s" if message.in_s else "immediately"
        self._note(event, process, f"restarting {when}{self._how_often(process, event.at)}")

    @_take.register
    def _on_restart_limit_reached(self, message: agent.RestartLimitReached, event: HostEvent) -> None:
        process = self._record(event)
        if process is None:
            return
        process.state = "failed"
        if process.role == "worker":
            self.last_failed_worker = f"{event.where}: {message.cause}"
        why = self._why_not_restarted(process, message)
        self._note(event, process, f"{why}; {self._without(process.role)}", message.cause)

    def _count_restart(self, process: ProcessRecord) -> None:
        cause = UNREPORTED if process.last_exit is None else process.last_exit.cause.partition("\n")[0]
        key = (process.role, without_numbers(cause))
        before = self._restart_causes.get(key, RestartCause(process.role, cause[:CAUSE_CHARACTERS], 0))
        self._restart_causes[key] = replace(before, count=before.count + 1)

    def _how_often(self, process: ProcessRecord, now: float) -> str:
        """From the second restart on: how many it has left, as its agent counts them."""
        restart = self.plan.config.restart
        process.restarted_at = [at for at in process.restarted_at if now - at < restart.window_s] + [now]
        if len(process.restarted_at) < 2 and restart.max > 1:
            return ""
        return f" (restart {len(process.restarted_at)} of at most {restart.max} within {restart.window_s:g} s)"

    def _why_not_restarted(self, process: ProcessRecord, message: agent.RestartLimitReached) -> str:
        died = process.last_exit
        if died is not None and died.cause != message.cause and message.cause.startswith(died.cause):
            twice = message.cause.removeprefix(died.cause).strip(" ()")
            return f"not restarted: it raised the same exception {twice}"
        if died is not None and died.code == BAD_CONFIGURATION:
            return f"not restarted: exit code {BAD_CONFIGURATION} means invalid configuration"
        restart = self.plan.config.restart
        return f"not restarted: restart limit reached ({restart.max} within {restart.window_s:g} s)"

    def _without(self, role: str) -> str:
        """Effect on the run when a process of that role is not restarted."""
        if role == "evaluator":
            return "the run continues without evaluations"
        if role != "worker":
            return "the run ends"
        if self.remaining_workers:
            return self._where_its_envs_go
        waits = "the run waits for the hosts that are to return"
        return f"no rollout worker remains; {waits if self.hosts.awaits_return else 'the run ends'}"

    @property
    def _where_its_envs_go(self) -> str:
        return (
            f"its vector envs {'move to the other workers' if self.plan.config.mode.deterministic else 'are removed'}"
        )

    def fail(self, cause: str, replaces: bool = False) -> None:
        """The run cannot continue. The first cause is kept, unless this one explains it."""
        self.failure = cause if replaces else self.failure or cause

    def note(self, problem: Problem) -> None:
        """A problem, to be reported."""
        self.problems.append(problem)
        self.noted += 1

    def noted_since(self, noted: int) -> list[Problem]:
        """Problems after the first `noted`, as far as they are kept."""
        return list(self.problems)[max(0, len(self.problems) + noted - self.noted) :]

    @_take.register
    def _on_agent(self, message: agent.Handshake, event: HostEvent) -> None:
        """A new agent has other processes, and counts restarts from none."""
        row = self.hosts.get(event.host)
        if row is not None:
            row.remove(row.processes.values())

    @_take.register
    def _on_problem(self, message: agent.ProblemReport, event: HostEvent) -> None:
        """Something failed that killed no process."""
        self.note(Problem(event.where, message.cause, message.done, log=self._log_of(event)))

    @_take.register
    def _on_relieved(self, message: agent.Relieved, event: HostEvent) -> None:
        """The broker placed vector envs by the speed of the workers."""
        worker = self.hosts.process("worker", message.worker)
        if worker is None:
            return
        moved = message.before - message.after
        if moved < 0:
            worker.relieved = None
            done = f"it has {message.after} vector envs now, before {message.before}"
            self.note(Problem(worker.host, f"worker {message.worker} is faster again", done))
            return
        worker.relieved = Relieved(worker.host, message.worker, message.factor, message.after)
        done = f"{moved} of its {message.before} vector envs move to faster workers; the weights do not depend on it"
        cause = f"worker {message.worker} is {times(message.factor)} times slower than the others"
        self.note(Problem(worker.host, cause, done))

    @_take.register
    def _on_acting(self, message: agent.ActingDigest, event: HostEvent) -> None:
        digests = {row.host: row.acting for row in self.hosts if row.acting and row.workers and not row.is_gone}
        differ = other_bits(digests)
        if differ and differ not in self._differing:
            self._differing.add(differ)
            cause = f"{differ}, by the processor or the version of numpy"
            done = "vector envs are spread evenly between these hosts, not by speed; the weights depend on this"
            self.note(Problem("hosts", cause, done))

    @_take.register
    def _on_failed(self, message: agent.RunFailed, event: HostEvent) -> None:
        if event.host != self.plan.config.learner.host:
            return
        self.fail(message.cause)
        if self.problems:
            self.failure = f"{message.cause}\n{replace(self.problems[-1], is_repeated=False)}"

    @_take.register
    def _on_fault(self, message: agent.Fault, event: HostEvent) -> None:
        if event.role is None and event.host == self.plan.config.learner.host:
            self.agent_fault = message.error

    @_take.register
    def _on_finished(self, message: agent.Finished, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.finished = message
        for role, peak in message.peak_pss_mb.items():
            self.peak_pss_mb[role] = max(self.peak_pss_mb.get(role, 0.0), peak)

    @_take.register
    def _on_joined(self, message: agent.Joined, event: HostEvent) -> None:
        if is_shared(self.plan.config.store) and not message.store:
            cause = f"the store {self.plan.store_path} is not shared with the learner's host"
            fix = "the broker sends the weights instead; mount it there for direct reads"
            self.note(Problem(event.host, cause, fix))

    def invite(self, host: str, text: str) -> None:
        """A host that is waited for, and what its user has to do."""
        self.note(Problem(host, "joins manually", text))

    @_take.register
    def _on_host_here(self, message: agent.HostHere, event: HostEvent) -> None:
        """The broker's report of hosts whose events do not come to this launcher."""
        row = self.hosts.register(message.host, message.workers)
        if row is None:
            return
        if row.is_gone:
            row.set_workers("ended")
            return
        row.remove(worker for worker in row.worker_records if worker.index not in message.workers)
        for index in message.workers:
            worker = row.record(ProcessSlot("worker", index))
            worker.state, worker.is_ready = "ready", True

    @_take.register
    def _on_warning(self, message: agent.Warned, event: HostEvent) -> None:
        self.note(Problem(event.host, message.text, "the run continues"))

    @_take.register
    def _on_refused(self, message: agent.Refused, event: HostEvent) -> None:
        self.count_refused(event.where, message.counts)

    @_take.register
    def _on_lines_refused(self, message: agent.LinesRefused, event: HostEvent) -> None:
        self.count_refused(f"the launcher, messages from {event.where}", message.counts)

    def count_refused(self, where: str, reported: Mapping[str, int]) -> None:
        """Each reason is reported once per process; the counts are in the status."""
        before, counts = self._refused_by.get(where, Counter()), Counter(reported)
        self._refused_by[where] = counts
        self.refused_messages = dict(sum(self._refused_by.values(), Counter()))
        new = [f"{count} x {reason}" for reason, count in counts.items() if reason not in before]
        if new:
            self.note(Problem(where, f"rejected {', '.join(new)}", "counted; the run continues"))

    def drain(self, host: str) -> None:
        """The launcher ends the part of a host that is not reached by SSH."""
        row = self.hosts.expect(host, ())
        row.state, row.cause = "drained", ""
        row.set_workers("ended")

    def judge_leaving(self, now: float) -> None:
        """Hosts that ended in order while the run continues are lost. `now` in monotonic seconds."""
        for loss in self.hosts.stayed_away(now) if self.ended is None else ():
            self._lose(loss)

    def remove_left(self) -> None:
        """Remove the workers that were taken from their hosts and have no process; those of a lost host are shown."""
        for row in self.hosts:
            left = [worker for worker in row.worker_records if worker.state in ("ended", "down", "failed")]
            row.remove(worker for worker in left if worker.index not in row.assigned)

    def _lose(self, loss: Loss) -> None:
        self.hosts[loss.host].set_workers("lost")
        if loss.host == self.plan.config.learner.host:
            self.agent_fault = self.agent_fault or "\n".join(filter(None, (loss.cause, loss.fix)))
            return
        if not loss.cause:
            return  # reported before
        others = "no host with workers remains"
        if self.can_go_on and not self.remaining_workers:
            others = "no host with workers remains; the run waits for its return"
        elif self.hosts.unusable_others:
            others = "no other host can be used"
        elif self.can_go_on:
            others = f"the run continues without this host; {self._where_its_envs_go}"
        done = f"{loss.fix}\n{others}" if loss.fix else others
        self.note(Problem(loss.host, loss.cause, done))

    @_take.register
    def _on_lease_lost(self, message: agent.LeaseLost, event: HostEvent) -> None:
        """The learner's host ended in good order, and yet not because the run was at its end."""
        if event.host == self.plan.config.learner.host and not self.hosts.ending:
            self.fail(f"{event.host}: {self.hosts.learner.cause}")

    @_take.register
    def _on_agent_exit(self, message: agent.AgentExited, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.agent_exit = 1 if message.code is None else message.code

    def _log_of(self, event: HostEvent) -> str:
        """In the run directory, where the logs of other hosts arrive; the agent names the file on its own host."""
        role, index = event.process
        return str(Path(self.plan.run_dir) / "logs" / f"{event.host}-{role}-{index}.log")

    def _note(self, event: HostEvent, process: ProcessRecord, action_taken: str, cause: str = UNREPORTED) -> None:
        """`cause`: of a process whose end was not reported."""
        died = process.last_exit
        if died is None:
            self.note(Problem(event.where, cause, action_taken))
            return
        fault, raised = without_numbers(died.cause), any(line.startswith(TRACEBACK) for line in died.log_tail)
        self.note(
            Problem(
                where=event.where,
                cause=died.cause,
                action_taken=action_taken,
                detail=died.detail,
                log=self._log_of(event),
                log_tail=tuple(died.log_tail),
                is_repeated=raised and fault in self._faults,
            )
        )
        if raised:
            self._faults.add(fault)


def _is_there(worker: ProcessRecord) -> bool:
    return worker.state in ("ready", "ended")
