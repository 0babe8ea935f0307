"""The launcher's state of a run: events in; views, `status.json` and the summary read it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

import msgspec

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores.make import is_shared
from zmqrl.launch.bottleneck import Bottleneck, Relieved, Slowest, bottleneck, slowest, times
from zmqrl.launch.host_table import HostTable, Loss
from zmqrl.launch.lineage import LastSeen
from zmqrl.messages import agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.handshake import other_bits
from zmqrl.supervision.restarts import BAD_CONFIGURATION, without_numbers
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
    """Changed by `handle` alone."""

    plan: RunPlan
    workers: dict[int, WorkerRow] = field(default_factory=dict)
    """Of the newest agent of each host, by index, without those that have left."""
    former_restarts: Counter[str] = field(default_factory=Counter)
    """By host: of workers that it has no more."""
    ready: set[tuple[str, int]] = field(default_factory=set)
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
    hosts: HostTable = field(init=False)
    paused: bool = False
    """Fewer workers than `min_workers` are ready: the workers get no leases."""
    stored: int = 0
    """Rows in the stream records of this arena: the learner counts `env_steps` when it uses them."""
    last_seen: LastSeen | None = None
    """Of a resume: the recorded progress of earlier attempts."""
    resumed_from: agent.Resumed | None = None
    """The FULL that the learner resumed from."""
    refused_messages: dict[str, int] = field(default_factory=dict)
    """By reason: what strangers, and who does not keep to the protocol, have sent."""
    _refused_by: dict[str, Counter[str]] = field(default_factory=dict)
    _relieved: dict[int, Relieved] = field(default_factory=dict)
    _differing: set[str] = field(default_factory=set)
    _last_exit: dict[tuple[str, int], agent.Exited] = field(default_factory=dict)
    _faults: set[str] = field(default_factory=set)
    """Causes whose traceback was reported, of any process."""
    _judged: dict[tuple[str, int], tuple[int, agent.State]] = field(default_factory=dict)
    """By role and index: the running spawn, and how the broker judges it."""
    _restart_causes: dict[tuple[str, str], RestartCause] = field(default_factory=dict)
    _restarted_at: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """Unix times within the window, by host, role and index."""

    def __post_init__(self) -> None:
        self.hosts = HostTable(self.plan)

    def handle(self, event: HostEvent) -> None:
        """Take one event in."""
        self.hosts.ending = self.hosts.ending or self.ended is not None
        loss = self.hosts.handle(event)
        if loss is not None:
            self._lose(loss)
        if not self._is_of_removed_worker(event):
            self._take(event.event, event)

    def _is_of_removed_worker(self, event: HostEvent) -> bool:
        """It was on its way when the row of the worker was removed."""
        if event.role != "worker" or event.index is None or event.index in self.workers:
            return False
        return not self.hosts.is_assigned(event.host, event.index)

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
    def has_begun(self) -> bool:
        """Whether the learner reported env steps or its end: from then on a refusal keeps the attempt."""
        return self.ended is not None or bool(self.metrics.get("env_steps"))

    @property
    def ready_workers(self) -> int:
        """Workers that reported READY and have not failed; in single the learner counts as one."""
        if self.plan.config.mode.in_process:
            return int(("learner", 0) in self.ready)
        return sum(("worker", index) in self.ready for index in self.workers)

    @property
    def all_ready(self) -> bool:
        """The learner and every worker of the hosts that have not failed."""
        enough = self.ready_workers >= max(self.expected_workers, self.required_workers)
        return ("learner", 0) in self.ready and (enough or self.plan.config.mode.in_process)

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
        return {row.index for row in self.workers.values() if row.state == "failed"}

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
        return [relieved for relieved in self._relieved.values() if self._is_there(relieved.worker)]

    @property
    def hanging(self) -> Mapping[tuple[str, int], agent.State]:
        """Processes that the broker judges to be silent or without progress, by role and index."""
        return {process: state for process, (_, state) in self._judged.items() if state != "well"}

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
        return slowest(row for row in self.workers.values() if self._is_there(row.index))

    def _is_there(self, worker: int) -> bool:
        return self.workers[worker].state in ("ready", "ended")

    def _row(self, event: HostEvent) -> WorkerRow | None:
        if event.role != "worker" or event.index is None:
            return None
        return self.workers.setdefault(event.index, WorkerRow(event.host, event.index))

    @_take.register
    def _on_worker_state(self, message: agent.WorkerState, event: HostEvent) -> None:
        process = (message.role, message.index)
        if message.role == "worker" and message.index not in self.workers:
            return  # it was removed
        if message.spawn >= self._judged.get(process, (0, "well"))[0]:
            self._judged[process] = (message.spawn, message.state)

    @_take.register
    def _on_started(self, message: agent.Started, event: HostEvent) -> None:
        self._judged[event.process] = (message.spawn, "well")
        if event.role == "broker":  # it begins to judge
            self._judged = {process: (spawn, "well") for process, (spawn, _) in self._judged.items()}
        row = self._row(event)
        if row is not None:
            row.state = "starting"

    @_take.register
    def _on_ready(self, message: agent.Ready, event: HostEvent) -> None:
        self.ready.add(event.process)
        row = self._row(event)
        if row is not None:
            row.state = "ready"

    @_take.register
    def _on_first_step(self, message: agent.FirstStep, event: HostEvent) -> None:
        if self.first_step_s is None:
            self.first_step_s = self.wall_s

    @_take.register
    def _on_worker(self, message: agent.WorkerRates, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            row.env_steps, row.env_steps_per_s = message.env_steps, message.env_steps_per_s
            row.wait_fraction, row.episodes = message.wait_fraction, message.episodes

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
        row = self._row(event)
        if row is not None:
            row.state = "ended" if message.expected else "down"
            if self.ended is None:
                self.ready.discard(event.process)
        crashed = event.role == "learner" and message.code not in (0, None)
        if message.expected and not crashed:
            return
        self.ready.discard(event.process)
        self._last_exit[event.process] = message
        if message.code == BAD_CONFIGURATION and (crashed or not self.has_begun):
            self.refused = self.refused or message.cause
        if message.expected:
            self._note(event, "the run ends without a final checkpoint")
            self.failure = self.failure or f"{event.where}: {message.cause}"

    @_take.register
    def _on_restart(self, message: agent.Restarting, event: HostEvent) -> None:
        self.restarts += 1
        self._count_restart(event)
        row = self._row(event)
        if row is not None:
            row.restarts += 1
        when = f"in {message.in_s:g} s" if message.in_s else "immediately"
        self._note(event, f"restarting {when}{self._how_often(event)}")

    @_take.register
    def _on_restart_limit_reached(self, message: agent.RestartLimitReached, event: HostEvent) -> None:
        row = self._row(event)
        if row is not None:
            row.state = "failed"
            self.last_failed_worker = f"{event.where}: {message.cause}"
        self._note(
            event, f"{self._why_not_restarted(event, message)}; {self._without(event.process[0])}", message.cause
        )

    def _count_restart(self, event: HostEvent) -> None:
        died = self._last_exit.get(event.process)
        role, cause = event.process[0], UNREPORTED if died is None else died.cause.partition("\n")[0]
        key = (role, without_numbers(cause))
        before = self._restart_causes.get(key, RestartCause(role, cause[:CAUSE_CHARACTERS], 0))
        self._restart_causes[key] = replace(before, count=before.count + 1)

    def _how_often(self, event: HostEvent) -> str:
        """From the second restart on: how many it has left, as its agent counts them."""
        restart = self.plan.config.restart
        times = self._restarted_at.setdefault((event.host, *event.process), [])
        times[:] = [at for at in times if event.at - at < restart.window_s] + [event.at]
        if len(times) < 2 and restart.max > 1:
            return ""
        return f" (restart {len(times)} of at most {restart.max} within {restart.window_s:g} s)"

    def _why_not_restarted(self, event: HostEvent, message: agent.RestartLimitReached) -> str:
        died = self._last_exit.get(event.process)
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

    def note(self, problem: Problem) -> None:
        """A problem, to be reported."""
        self.problems.append(problem)
        self.noted += 1

    def noted_since(self, noted: int) -> list[Problem]:
        """Problems after the first `noted`, as far as they are kept."""
        return list(self.problems)[max(0, len(self.problems) + noted - self.noted) :]

    @_take.register
    def _on_agent(self, message: agent.Handshake, event: HostEvent) -> None:
        """A new agent has other workers, and counts restarts from none."""
        self._remove_workers(self._of_former_agent(event.host))
        self._restarted_at = {slot: times for slot, times in self._restarted_at.items() if slot[0] != event.host}

    @_take.register
    def _on_problem(self, message: agent.ProblemReport, event: HostEvent) -> None:
        """Something failed that killed no process."""
        self.note(Problem(event.where, message.cause, message.done, log=self._log_of(event)))

    @_take.register
    def _on_relieved(self, message: agent.Relieved, event: HostEvent) -> None:
        """The broker placed vector envs by the speed of the workers."""
        row = self.workers.get(message.worker)
        if row is None:
            return
        moved = message.before - message.after
        if moved < 0:
            self._relieved.pop(message.worker, None)
            done = f"it has {message.after} vector envs now, before {message.before}"
            self.note(Problem(row.host, f"worker {message.worker} is faster again", done))
            return
        self._relieved[message.worker] = Relieved(row.host, message.worker, message.factor, message.after)
        done = f"{moved} of its {message.before} vector envs move to faster workers; the weights do not depend on it"
        cause = f"worker {message.worker} is {times(message.factor)} times slower than the others"
        self.note(Problem(row.host, cause, done))

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
        self.failure = self.failure or message.cause
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
            self._set_workers(row.host, "ended")
            return
        self._remove_workers(self._of_former_agent(row.host, present=message.workers))
        for index in message.workers:
            self.workers.setdefault(index, WorkerRow(row.host, index, "ready"))
            self.ready.add(("worker", index))

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
        self._set_workers(host, "ended")

    def judge_leaving(self, now: float) -> None:
        """Hosts that ended in order while the run continues are lost. `now` in monotonic seconds."""
        for loss in self.hosts.stayed_away(now) if self.ended is None else ():
            self._lose(loss)

    def remove_left(self) -> None:
        """Remove the workers that were taken from their hosts and have no process; those of a lost host are shown."""
        left = [row for row in self.workers.values() if row.state in ("ended", "down", "failed")]
        self._remove_workers(row for row in left if not self.hosts.is_assigned(row.host, row.index))

    def _remove_workers(self, rows: Iterable[WorkerRow]) -> None:
        """Their indexes are not used again."""
        for row in list(rows):
            process = ("worker", row.index)
            self.former_restarts[row.host] += row.restarts
            del self.workers[row.index]
            self.ready.discard(process)
            self._relieved.pop(row.index, None)
            self._last_exit.pop(process, None)
            self._judged.pop(process, None)
            self._restarted_at.pop((row.host, *process), None)

    def _of_former_agent(self, host: str, present: Container[int] = ()) -> list[WorkerRow]:
        return [row for row in self.workers.values() if row.host == host and row.index not in present]

    def _set_workers(self, host: str, state: str) -> None:
        """Of a host that is gone."""
        for worker in [worker for worker in self.workers.values() if worker.host == host]:
            worker.state = state
            self.ready.discard(("worker", worker.index))

    def _lose(self, loss: Loss) -> None:
        self._set_workers(loss.host, "lost")
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
            self.failure = self.failure or f"{event.host}: {self.hosts.learner.cause}"

    @_take.register
    def _on_agent_exit(self, message: agent.AgentExited, event: HostEvent) -> None:
        if event.host == self.plan.config.learner.host:
            self.agent_exit = 1 if message.code is None else message.code

    def _log_of(self, event: HostEvent) -> str:
        """In the run directory, where the logs of other hosts arrive; the agent names the file on its own host."""
        role, index = event.process
        return str(Path(self.plan.run_dir) / "logs" / f"{event.host}-{role}-{index}.log")

    def _note(self, event: HostEvent, action_taken: str, cause: str = UNREPORTED) -> None:
        """`cause`: of a process whose end was not reported."""
        died = self._last_exit.get(event.process)
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
