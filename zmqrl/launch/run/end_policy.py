"""When a run ends, and with which outcome. Pure: the state of the run and the user's request in, actions out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.launch.run import reports
from zmqrl.launch.run.actions import Action, Leave, Send, Show
from zmqrl.launch.run.state import STOP, RunState
from zmqrl.launch.stop_signals import SAME_PRESS_S, StopRequest
from zmqrl.messages.command import KillAll, Stop
from zmqrl.orchestrators.base import Teardown
from zmqrl.summary import Status
from zmqrl.supervision.restarts import BAD_CONFIGURATION
from zmqrl.views.problem import Problem

FAILED, UNCLEAN, TOO_FEW, INTERRUPTED, DONE = 1, 3, 4, 130, 0
TEARDOWN_SLACK_S = 10.0
KILL_GRACE_S = 2.0
AGAIN = f"a second interrupt, at least {SAME_PRESS_S:g} s later, kills all processes"
SETTLE_S = 2.0
"""A worker that is only restarted is back within this time."""
HOST_CAUSE_S = 2.0
"""Why a host has not started within `limits.start_s` is reported within this time."""
NO_OTHER_HOST = (
    "no other host could be used, and a run for several hosts does not continue on this machine alone; "
    f"to train on this machine only: --limit {LOCAL}"
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Status
    exit_code: int
    error: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether a process rejected the configuration."""
        return self.exit_code == BAD_CONFIGURATION


class TooFew:
    """Counts from the first time that the run had `min_workers`; before that `limits.start_s` applies."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: `limits.too_few_s`."""
        self._limit_s = limit_s
        self._has_begun = False
        self._since: float | None = None

    def check(self, state: RunState, now: float) -> Problem | None:
        """Set `state.pause_cause` as of `now`, in monotonic seconds; the problem to report, if that changes."""
        ready, required = state.ready_workers, state.required_workers
        self._has_begun = self._has_begun or ready >= state.plan.config.min_workers
        if not self._has_begun or state.is_ending or state.plan.config.mode.in_process:
            return None
        if ready >= required:
            since, self._since = self._since, None
            if state.paused:
                state.pause_cause = ""
                return reports.enough_again(state, 0.0 if since is None else now - since)
            return None
        self._since = now if self._since is None else self._since
        if state.paused or now - self._since < SETTLE_S:
            return None
        problem = reports.too_few(state, self._limit_s)
        state.pause_cause = problem.cause
        return problem

    def is_over(self, now: float) -> bool:
        """Whether the run has been paused for as long as it may be."""
        return self._since is not None and now - self._since >= self._limit_s


class EndPolicy:
    """Limits of the start, of a pause and of the run, requests of the user, and hosts that are gone.

    Once the run is stopped, `end_by` bounds the time until `Leave`.
    """

    def __init__(self, plan: RunPlan, now: float) -> None:
        """`now`: in monotonic seconds, as everywhere here."""
        self._plan, self._limits = plan, plan.config.limits
        self._start_by = now + self._limits.start_s
        """Infinite once the run has started."""
        self._too_few = TooFew(self._limits.too_few_s)
        self.end_by: float | None = None
        """None: the run is not stopped."""
        self._writing_until, self._writing_reports = 0.0, 0
        self._sent = StopRequest.NONE
        self._same_presses = 0
        self._not_ready: str | None = None
        """Why the run was stopped with exit code 4."""
        self._is_unstarted = False
        """The run was stopped before its learner's host had started: nothing of it is waited for."""

    def step(self, state: RunState, request: StopRequest, same_presses: int, now: float) -> list[Action]:
        """What follows at `now`. `same_presses`: interrupts that counted as the first one."""
        self._extend(state, request, now)
        problem = self._too_few.check(state, now)
        if problem is not None:
            state.note(problem)
        actions = self._follow(state, request, same_presses, now)
        if self.end_by is None:
            actions += self._check(state, now)
        if self.end_by is not None and now >= self.end_by:
            actions.append(Leave())
        return actions

    def grace_s(self, request: StopRequest) -> float:
        """How long the processes may take that are there after `Leave`."""
        return KILL_GRACE_S if request is StopRequest.KILL else self._limits.grace_s

    def _extend(self, state: RunState, request: StopRequest, now: float) -> None:
        """The learner is writing a FULL that may take longer than the grace; it reports for `store.wait_s` at most."""
        if state.writing_reports == self._writing_reports:
            return
        self._writing_reports, self._writing_until = state.writing_reports, now + self._limits.grace_s
        if self.end_by is not None and request is not StopRequest.KILL:
            self.end_by = max(self.end_by, self._clean_end_by(now))

    def _follow(self, state: RunState, request: StopRequest, same_presses: int, now: float) -> list[Action]:
        """The user's request; one that was followed before changes nothing."""
        repeated, self._same_presses = same_presses > self._same_presses, same_presses
        if request <= self._sent:
            is_shown = repeated and request is StopRequest.INTERRUPT
            text = f"this interrupt came within {SAME_PRESS_S:g} s of the first and counts as the same; {AGAIN}"
            return [Show(text)] if is_shown else []
        self._sent, is_first = request, self._sent is StopRequest.NONE
        if request is StopRequest.KILL:
            self.end_by, self._is_unstarted = now + KILL_GRACE_S, not state.hosts.learner.has_agent
            return [Show("killing every process of the run"), Send(None, KillAll())]
        if not is_first or self.end_by is not None:
            return []
        actions = self._stop(state, now)
        if request is StopRequest.INTERRUPT:
            how = "stopping: the learner's host has not started" if self._is_unstarted else "stopping with a checkpoint"
            return [Show(f"{how}; {AGAIN}"), *actions]
        return actions

    def _check(self, state: RunState, now: float) -> list[Action]:
        """The reasons for which a run ends that its learner does not end, the most serious first."""
        reason = None if state.is_ending else state.no_hosts_reason
        if reason is not None:
            if now < self._start_by or state.hosts.learner.has_agent or state.agent_fault is None:
                lacks_hosts = bool(state.hosts.unusable_others) or _is_learners_host_lost(state)
                state.fail(reason, lacks_hosts=lacks_hosts)  # else its own cause is the error
            # without a learner no checkpoint is written
            return self._stop(state, now, failed=True) if state.hosts.learner.state == "ready" else [Leave()]
        if state.ended is not None:
            return []
        others = state.hosts.unusable_others
        if others and state.all_ready:  # before that its learner takes no stop
            causes = [f"{record.host}: {record.cause}" for record in others]
            self._not_ready = "\n".join([NO_OTHER_HOST, *causes])
            return self._stop(state, now)
        error = self._start_error(state, now) or self._pause_error(state, now)
        if error is not None:
            self._not_ready = error
            actions = self._stop(state, now)
            if self._is_unstarted:
                self.end_by = now + HOST_CAUSE_S
            return actions
        return self._stop(state, now) if self._is_over_wall_limit(state, now) else []

    def _stop(self, state: RunState, now: float, failed: bool = False) -> list[Action]:
        state.hosts.ending = True
        self._is_unstarted = not state.hosts.learner.has_agent
        self.end_by = now if self._is_unstarted else self._clean_end_by(now)
        # the learner's host alone: its learner needs the others' workers to reach a version boundary
        return [Send(state.hosts.learner.host, Stop(failed))]

    def _clean_end_by(self, now: float) -> float:
        return now + 3 * self._limits.grace_s + self._plan.config.evaluator.final_limit_s + TEARDOWN_SLACK_S

    def _start_error(self, state: RunState, now: float) -> str | None:
        """Once the learner and `min_workers` were ready, a pause and the restart limits decide."""
        config, start_s = self._plan.config, self._limits.start_s
        is_stepping = state.first_step_s is not None
        has_workers = config.mode.in_process or is_stepping or state.ready_workers >= config.min_workers
        if state.is_learner_ready and has_workers:
            self._start_by = math.inf
        elif state.is_learner_ready and state.required_workers < config.min_workers:  # hosts that are away
            self._start_by = max(self._start_by, now + start_s)
        if now < self._start_by:
            return None
        limit = f"within limits.start_s ({start_s:g} s)"
        causes = [] if has_workers else [self._too_few_ready(state, limit)]
        if not state.hosts.learner.has_agent:
            causes.append(f"the learner's host {state.hosts.learner.host} did not start {limit}")
        elif not state.is_learner_ready:
            causes.append(f"the learner was not ready {limit}; see its log, or raise limits.start_s")
        return "; ".join(causes)

    def _pause_error(self, state: RunState, now: float) -> str | None:
        if not self._too_few.is_over(now):
            return None
        return self._too_few_ready(state, f"for limits.too_few_s ({self._limits.too_few_s:g} s)")

    def _too_few_ready(self, state: RunState, when: str) -> str:
        return f"{state.ready_workers} of at least {self._plan.config.min_workers} workers ready {when}"

    def _is_over_wall_limit(self, state: RunState, now: float) -> bool:
        """The learner ends the run at `run.max_wall_s`; a run whose learner cannot is stopped from here.

        A learner that is writing has its grace begin again with each report, as in a stop.
        """
        max_wall_s = self._plan.config.run.max_wall_s
        if max_wall_s is None or now < self._writing_until:
            return False
        over_s = now - self._plan.began - max_wall_s
        if over_s < self._limits.grace_s:
            return False
        state.note(reports.over_wall_limit(max_wall_s, over_s))
        return True

    def outcome(self, state: RunState, request: StopRequest, teardown: Teardown, is_taken_over: bool) -> Outcome:
        """2 before 1 before 4 (not ready) before 3; then interrupted, stopped, done.

        `state`: after the last event. `is_taken_over`: another launcher owns the run directory: a learner that finds it
        exits with code 2 as well.
        """
        has_learner = bool(state.hosts.workers) or state.is_learner_ready or self._is_unstarted
        if state.agent_exit == BAD_CONFIGURATION and state.hosts.learner.incarnation and not has_learner:
            refusal, host = state.agent_fault or "the host agent rejected the configuration", state.hosts.learner.host
            return Outcome("failed", BAD_CONFIGURATION, refusal if host == LOCAL else f"{host}: {refusal}")
        if state.failure is not None and state.refused is not None and not is_taken_over:
            return Outcome("failed", BAD_CONFIGURATION, state.refused)
        failure = state.failure or (None if self._is_unstarted else state.lost_agent_cause)
        if failure is not None and request is not StopRequest.KILL:
            lacks_hosts = state.lacks_hosts or _is_learners_host_lost(state)
            return Outcome("failed", TOO_FEW if lacks_hosts else FAILED, failure)
        left = f"processes remain after the teardown: {', '.join(sorted(teardown.left))}"
        if self._not_ready is not None:  # usually with hosts that cannot be reached
            fault = state.agent_fault if self._is_unstarted else None
            error = "\n".join(filter(None, (self._not_ready, fault)))
            return Outcome("failed", TOO_FEW, f"{error}; {left}" if teardown.left else error)
        if teardown.left:
            return Outcome("failed", UNCLEAN, left)
        cut_off = request is StopRequest.NONE and state.cut_off is not None
        if cut_off or request in (StopRequest.INTERRUPT, StopRequest.KILL):
            return Outcome("interrupted", INTERRUPTED)
        stopped = request is StopRequest.STOP or (state.ended is not None and state.ended.reason == STOP)
        if state.ended is None and not stopped:
            return Outcome("failed", FAILED, "the learner has not reported the end of the training")
        return Outcome("stopped" if stopped else "done", DONE)


def _is_learners_host_lost(state: RunState) -> bool:
    """Whether its agent has ended, or could not be started, without a cause that it or another process reported."""
    learner = state.hosts.learner
    return learner.is_gone and state.finished is None and not learner.fault and state.failure is None
