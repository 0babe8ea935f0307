"""Launching a run: deploy, watch, write down, tear down, sum up."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from zmqrl.config.codec import replace, to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.config.webhook import is_unstored
from zmqrl.data_stores.base import few
from zmqrl.errors import ConfigError, name_of
from zmqrl.launch.end_notices import UNSTORED_URL, notify_end
from zmqrl.launch.environment_record import EnvironmentWriter
from zmqrl.launch.host_links import HostLinks
from zmqrl.launch.initial_weights import initial_file
from zmqrl.launch.lease_renewal import LeaseRenewal
from zmqrl.launch.lineage import last_seen
from zmqrl.launch.problem_reports import AdvisoryWrites, SlowWorkerReport, StallDetector, lost_agent
from zmqrl.launch.run_directory import RunDirectory, resume_command
from zmqrl.launch.run_state import STOP, RunState
from zmqrl.launch.status import status_of
from zmqrl.launch.stop_signals import SAME_PRESS_S, Request, StopFile, StopSignals, is_main_thread
from zmqrl.launch.summary import Status, Summary, final_lines, summarise
from zmqrl.launch.too_few import TooFew
from zmqrl.launch.url_mirror import UrlMirror, target_of
from zmqrl.logs.printable import printable
from zmqrl.logs.standard_output import lossy_output
from zmqrl.messages import agent
from zmqrl.metrics.recorder import Recorder
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.views.base import QuietView, View, make_view
from zmqrl.views.problem import Problem
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

BAD_CONFIGURATION, FAILED, UNCLEAN, TOO_FEW, INTERRUPTED, DONE = 2, 1, 3, 4, 130, 0
MONITOR_S = 0.1
STATUS_EVERY_S = 1.0
TEARDOWN_SLACK_S = 10.0
KILL_GRACE_S = 2.0
COPY_S = 2.0
"""The last copy of a run usually takes less; the user is notified of a longer one."""
MOST_KILLED_NAMED = 5
AGAIN = f"a second interrupt, at least {SAME_PRESS_S:g} s later, kills all processes"
NO_OTHER_HOST = (
    "no other host could be used, and a run for several hosts does not continue on this machine alone; "
    f"to train on this machine only: --limit {LOCAL}"
)
RECORDED = (agent.Metrics, agent.Score, agent.WorkerRates)


def launch(
    plan: RunPlan, plain: bool = False, from_scratch: bool = False, on_ready: Callable[[], None] = lambda: None
) -> int:
    """Run `plan` to its end and return the command's exit code.

    Args:
        plan: From `plan_run`.
        plain: Lines instead of the live view.
        from_scratch: See `prepare_resume`.
        on_ready: Called once every process is READY.

    Raises:
        ConfigError: The run directory is in use, or a resume is refused. Nothing was started.
    """
    if not plan.resume:
        return Launcher(plan, make_orchestrator(plan), plain, on_ready).run()
    from zmqrl.launch.resume import prepare_resume

    directory = RunDirectory.own(plan)
    try:
        plan = prepare_resume(plan, directory, from_scratch)
        launcher = Launcher(plan, make_orchestrator(plan), plain, on_ready, directory)
    except BaseException:
        directory.discard()
        raise
    return launcher.run()


@dataclass
class _Deadlines:
    """Monotonic times of what the launcher waits for."""

    start_by: float
    """Infinite once the run has started."""
    status_at: float = 0.0
    end_by: float | None = None
    writing_until: float = 0.0
    sent: Request = field(default=Request.NONE)


class Observer:
    """What a caller in this process sees of the run, in the thread of `Launcher.run`. A wait delays the launcher."""

    def on_event(self, event: HostEvent, state: RunState) -> bool:
        """After each event of the run was taken; False requests a stop."""
        del event, state
        return True

    def on_status(self, state: RunState) -> bool:
        """Once a second; False requests a stop."""
        del state
        return True


class Launcher:
    """One run. `run` is called once. Outside of the main thread it catches no signals: `request_stop` stops the run."""

    def __init__(
        self,
        plan: RunPlan,
        orchestrator: Orchestrator,
        plain: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        directory: RunDirectory | None = None,
        quiet: bool = False,
        observer: Observer | None = None,
    ) -> None:
        """`directory`: the run's, where this process owns it by now; `quiet`: nothing is printed."""
        self._plan = plan
        self._orchestrator = orchestrator
        self._plain, self._quiet = plain, quiet
        self._observer = observer or Observer()
        self._on_ready: Callable[[], None] | None = on_ready
        self._directory = directory
        self._state = RunState(plan, last_seen=last_seen(Path(plan.run_dir)) if plan.resume else None)
        self._links = HostLinks(plan, self._state, orchestrator, private_folder(plan.run_id))
        self._leases = LeaseRenewal(orchestrator, plan.config.store.wait_s)
        self._files = AdvisoryWrites(Path(plan.run_dir), self._state.note)
        self._signals = StopSignals()
        self._stop_file = StopFile(Path(plan.run_dir))
        self._target = target_of(plan)
        self._mirror: UrlMirror | None = None
        self._environment: EnvironmentWriter | None = None
        self._stall_detector = StallDetector(plan.config.limits.stalled_after_s)
        self._slow_worker = SlowWorkerReport()
        self._problems_reported = self._same_presses = 0
        self._too_few = TooFew(plan.config.limits.too_few_s)
        self._not_ready_error: str | None = None
        self._no_hosts_at_start = self._taken_over = False
        self._deadlines = _Deadlines(time.monotonic() + plan.config.limits.start_s)

    @property
    def summary(self) -> Summary | None:
        """The summary, once `run` has returned and anything was started."""
        return self._summary

    _summary: Summary | None = None
    refusal: str | None = None
    """Why a process of the run rejected the configuration: nothing is left of the run."""

    def request_stop(self, request: Request = Request.STOP) -> None:
        """Any thread: as `zmqrl stop`, or as a signal."""
        self._signals.request = max(self._signals.request, request)

    def run(self) -> int:
        """From the run directory to the summary. Returns the exit code."""
        initial = initial_file(self._plan)
        directory = self._directory or RunDirectory.own(self._plan)
        with ExitStack() as until_the_end:
            owned = until_the_end.enter_context(ExitStack())
            owned.callback(self._files.attempt, "the owner's record", directory.release)
            if is_main_thread():  # both change the whole process
                until_the_end.enter_context(self._signals.caught())
                until_the_end.enter_context(lossy_output())
            with owned:
                directory.begin(self._plan, initial, self._orchestrator.job)
                self._stop_file.is_requested()  # one that came too late for the attempt before
                code = self._run_in(directory)
            if self._summary is not None and not self._taken_over:
                self._notify_end(directory, self._summary)
            return code

    def _notify_end(self, directory: RunDirectory, summary: Summary) -> None:
        """The directory is free by now: the command may resume the run."""
        for problem in notify_end(self._plan.config, directory.path, summary, self._signals.further()):
            self._print(problem, sys.stderr)

    def _print(self, text: object, stream: TextIO | None = None) -> None:
        """To stdout, unless `stream` is given; nothing if the caller wants no output."""
        if not self._quiet:
            with suppress(OSError, ValueError):  # closed; `lossy_output` is for the main thread alone
                print(printable(str(text)), file=stream, flush=True)

    def _run_in(self, directory: RunDirectory) -> int:
        self._environment = EnvironmentWriter(self._plan)
        try:
            self._links.deploy()
        except ConfigError:
            directory.discard()
            raise
        view: View = QuietView()
        recorder = Recorder(directory.path, self._plan.started_at)
        try:
            self._leases.start()
            view = make_view(self._plain, self._quiet)
            self._warn(view)
            self._watch(directory, recorder, view)
        except Exception as error:  # noqa: BLE001 - the top loop: whatever it is, the run is ended and summed up
            traceback.print_exc()
            self._state.failure = f"the launcher failed: {type(error).__name__}: {error}"
        finally:
            self._leases.end()
            teardown = self._undeploy(view)
            if not teardown.left:
                remove_left_folder(self._plan.run_id)
            for event in self._orchestrator.monitor(0.0):
                self._take_last(event, recorder)
            if not self._taken_over:
                self._files.attempt("metrics", recorder.record_workers, self._state.wall_s, self._state.env_steps)
            self._files.attempt("metrics", recorder.close)
            view.close(self._status)
        code = self._sum_up(directory, teardown)
        if self._mirror is not None:
            self._finish_copies(self._mirror)
        return code

    def _undeploy(self, view: View) -> Teardown:
        """The run is summed up, whatever the orchestrator raises."""
        try:
            return self._orchestrator.undeploy(self._grace_s())
        except Exception as error:  # noqa: BLE001 - of any kind of orchestrator: the end is not verified
            traceback.print_exc()
            cause = f"could not be verified: {name_of(error)}: {error}"
            fix = f"to end and verify what is left: zmqrl down {self._plan.run_id}"
            self._state.note(Problem("the end of the processes", cause, fix))
            self._report_problems(view)
            return Teardown(ended=0, left=(f"? ({cause})",))

    def _start_copies(self) -> None:
        """Once no host can refuse the attempt: until then the copy belongs to the attempt before."""
        if self._mirror is None and self._target is not None and self._state.has_begun:
            self._mirror = UrlMirror(self._plan, self._target, self._state.note)

    def _finish_copies(self, mirror: UrlMirror) -> None:
        """The run has ended and is summed up; only its copies elsewhere are waited for."""
        if self._taken_over or self.refusal is not None:  # the directory is another launcher's, or removed
            mirror.abandon()
            return
        reported, interrupted = self._state.noted, self._signals.further()
        is_killed = self._signals.request is Request.KILL
        mirror.end()
        is_complete = mirror.is_complete(COPY_S, interrupted)
        if mirror.is_alive and not is_killed:
            wait_s = self._plan.config.store.wait_s
            self._print(f"waiting for the copy at {mirror.url}, {wait_s:g} s at most (store.wait_s)")
            is_complete = mirror.is_complete(wait_s, interrupted)
        mirror.abandon()
        for problem in self._state.noted_since(reported):
            self._print(problem, sys.stderr)
        if not is_complete:
            text = f"{mirror.content} are not all at {mirror.url}; see {self._plan.run_dir}"
            self._print(text, sys.stderr)

    def _watch(self, directory: RunDirectory, recorder: Recorder, view: View) -> None:
        while self._state.agent_exit is None:
            for event in self._orchestrator.monitor(MONITOR_S):
                self._take(event, recorder)
                self._confirm()
            self._confirm()
            now = time.monotonic()
            for problem in (
                self._too_few.check(self._state, now),
                self._stall_detector.check(self._state, now),
                self._slow_worker.check(self._state, now),
            ):
                if problem is not None:
                    self._state.note(problem)
            self._report_problems(view)
            self._files.attempt("an answer to a request", self._links.step, now)
            self._pass_requests(view, now)
            self._check_other_hosts(now)
            self._check_start(now)
            self._check_pause(now)
            self._check_wall_limit(now)
            reason = self._links.no_hosts_reason()
            if reason is not None:
                self._state.failure = reason
                self._no_hosts_at_start = bool(self._state.hosts.unusable_others)
                if self._state.hosts.learner.state != "ready":
                    return  # no learner can write a checkpoint
                self._stop(now, failed=True)
            if self._deadlines.end_by is not None and now > self._deadlines.end_by:
                return
            if now >= self._deadlines.status_at:
                self._deadlines.status_at = now + STATUS_EVERY_S
                if self._is_taken_over(directory):
                    return
                self._write_status(directory)
                self._observe(self._observer.on_status(self._state))
                if self._stop_file.is_requested():
                    self.request_stop()
                if self._state.has_begun and self._environment is not None and self._environment.is_due:
                    self._record_environment(directory)
            view.update(self._status, now)
        lost = lost_agent(self._state)
        if lost is not None and self._signals.request is not Request.KILL:
            self._state.note(lost)
        self._report_problems(view)
        self._write_status(directory)

    def _confirm(self) -> None:
        """After each event too: each may wait for a file server that is away, and report an error at last."""
        blocked = self._leases.confirm(time.monotonic())
        if blocked is not None:
            self._state.note(blocked)

    def _is_taken_over(self, directory: RunDirectory) -> bool:
        """Another launcher owns the directory: nothing more is written there, no checkpoint either."""
        successor = directory.successor
        if successor is not None:
            self._taken_over = True
            self._state.failure = (
                f"run directory {directory.path} was taken over by {successor}: this launcher sent no heartbeat"
            )
            self._orchestrator.command(None, agent.Kill())
        return self._taken_over

    def _record_environment(self, directory: RunDirectory) -> None:
        """Once no host can refuse the attempt, or at its end."""
        if self._environment is not None:
            self._files.attempt("environment", self._environment.write, directory.path)

    def _status(self) -> dict[str, Any]:
        return status_of(self._state, time.time(), self._state.wall_s)

    def _write_status(self, directory: RunDirectory) -> None:
        self._files.attempt("status.json", directory.write, "status.json", self._status())

    def _take(self, event: HostEvent, recorder: Recorder) -> None:
        self._state.handle(event)
        self._start_copies()
        if isinstance(event.event, agent.LogText):
            self._files.attempt("a log", self._links.take, event)
        else:
            self._links.take(event)
        if isinstance(event.event, RECORDED):
            self._files.attempt("metrics", self._record, event, recorder)
        elif isinstance(event.event, agent.Writing):
            self._give_time()
        self._observe(self._observer.on_event(event, self._state))
        # While the run stops, the hosts that have not left would count as all.
        is_stopping = self._signals.request is not Request.NONE
        is_ready = self._state.all_ready and not self._state.hosts.unusable_others
        if self._on_ready is not None and is_ready and not is_stopping:
            self._on_ready()
            self._on_ready = None

    def _observe(self, continues: bool) -> None:
        if not continues and self._state.ended is None:  # else it is over, and was not stopped
            self.request_stop()

    def _record(self, event: HostEvent, recorder: Recorder) -> None:
        wall_s, env_steps = self._state.wall_s, self._state.env_steps
        match event.event:
            case agent.Metrics() as metrics:
                recorder.record(wall_s, env_steps, metrics.values)
            case agent.Score() as score:
                scores = {"eval_return_mean": score.return_mean, "eval_return_std": score.return_std}
                recorder.record(wall_s, score.env_steps, scores)
            case agent.WorkerRates() as worker if event.index is not None:
                rates = {"env_steps_per_s": worker.env_steps_per_s, "wait_fraction": worker.wait_fraction}
                recorder.record_worker(wall_s, env_steps, event.index, rates)

    def _take_last(self, event: HostEvent, recorder: Recorder) -> None:
        """As `_take`; after a failure only what the summary needs."""
        if self._state.failure is None:
            self._take(event, recorder)
        else:
            self._state.handle(event)

    def _report_problems(self, view: View) -> None:
        for problem in self._state.noted_since(self._problems_reported):
            view.message(str(problem))
        self._problems_reported = self._state.noted

    def _pass_requests(self, view: View, now: float) -> None:
        request = self._signals.request
        if request <= self._deadlines.sent:
            self._acknowledge(view)
            return
        first = self._deadlines.sent is Request.NONE
        self._deadlines.sent = request
        if request is Request.KILL:
            view.message("killing every process of the run")
            self._orchestrator.command(None, agent.Kill())
            self._deadlines.end_by = now + KILL_GRACE_S
        elif first:
            if request is Request.INTERRUPT:
                view.message(f"stopping with a checkpoint; {AGAIN}")
            self._stop(now)

    def _acknowledge(self, view: View) -> None:
        """An interrupt that changed nothing."""
        if self._signals.same_presses > self._same_presses and self._signals.request is Request.INTERRUPT:
            view.message(f"this interrupt came within {SAME_PRESS_S:g} s of the first and counts as the same; {AGAIN}")
        self._same_presses = self._signals.same_presses

    def _stop(self, now: float, failed: bool = False) -> None:
        self._state.hosts.ending = True
        # the learner's host first: its learner needs the others' workers to reach a version boundary
        self._orchestrator.command(self._plan.config.learner.host, agent.Stop(failed))
        self._deadlines.end_by = self._clean_end_by(now)

    def _give_time(self) -> None:
        """The learner is writing a FULL that may take longer than the grace; it reports for `store.wait_s` at most."""
        self._deadlines.writing_until = time.monotonic() + self._plan.config.limits.grace_s
        if self._deadlines.end_by is not None and self._signals.request is not Request.KILL:
            self._deadlines.end_by = max(self._deadlines.end_by, self._clean_end_by(time.monotonic()))

    def _clean_end_by(self, now: float) -> float:
        limits, evaluator = self._plan.config.limits, self._plan.config.evaluator
        return now + 3 * limits.grace_s + evaluator.final_limit_s + TEARDOWN_SLACK_S

    def _check_start(self, now: float) -> None:
        """Once the learner and `min_workers` were ready, `TooFew` and the restart limits decide."""
        state, config, start_s = self._state, self._plan.config, self._plan.config.limits.start_s
        has_learner = state.is_learner_ready
        is_stepping = state.first_step_s is not None
        has_workers = config.mode.in_process or is_stepping or state.ready_workers >= config.min_workers
        if has_learner and has_workers:
            self._deadlines.start_by = math.inf
        elif has_learner and state.required_workers < config.min_workers:  # hosts that are away are not waited for
            self._deadlines.start_by = max(self._deadlines.start_by, now + start_s)
        if now < self._deadlines.start_by or self._deadlines.end_by is not None:
            return
        limit = f"within limits.start_s ({start_s:g} s)"
        workers = [] if has_workers else [self._too_few_ready(limit)]
        learner = [] if has_learner else [f"the learner was not ready {limit}; see its log, or raise limits.start_s"]
        self._end_not_ready("; ".join([*workers, *learner]), now)

    def _check_pause(self, now: float) -> None:
        if self._deadlines.end_by is None and not self._state.ended and self._too_few.is_over(now):
            too_few_s = self._plan.config.limits.too_few_s
            self._end_not_ready(self._too_few_ready(f"for limits.too_few_s ({too_few_s:g} s)"), now)

    def _too_few_ready(self, when: str) -> str:
        return f"{self._state.ready_workers} of at least {self._plan.config.min_workers} workers ready {when}"

    def _check_other_hosts(self, now: float) -> None:
        """A run for several hosts does not train on this machine alone without a request for that.

        It is stopped once it is ready: a learner that is starting takes no stop.
        """
        others = self._state.hosts.unusable_others
        if others and self._deadlines.end_by is None and self._state.all_ready and not self._state.ended:
            self._not_ready_error = "\n".join([NO_OTHER_HOST, *(f"{row.host}: {row.cause}" for row in others)])
            self._stop(now)

    def _end_not_ready(self, error: str, now: float) -> None:
        if self._state.failure is None:
            self._not_ready_error = error
        self._stop(now)

    def _check_wall_limit(self, now: float) -> None:
        """The learner ends the run at `run.max_wall_s`; a run whose learner cannot is stopped from here.

        A learner that is writing has its grace begin again with each report, as in a stop.
        """
        max_wall_s, grace_s = self._plan.config.run.max_wall_s, self._plan.config.limits.grace_s
        if max_wall_s is None or self._deadlines.end_by is not None or self._state.ended:
            return
        if now < self._deadlines.writing_until:
            return
        over_s = now - self._plan.began - max_wall_s
        if over_s >= grace_s:
            passed = f"run.max_wall_s ({max_wall_s:g} s) passed {over_s:.0f} s ago"
            cause = f"{passed}, and the learner did not end the run"
            self._state.note(Problem("run", cause, "the run is stopped"))
            self._stop(now)

    def _grace_s(self) -> float:
        return KILL_GRACE_S if self._signals.request is Request.KILL else self._plan.config.limits.grace_s

    def _warn(self, view: View) -> None:
        for warning in self._plan.warnings:
            view.message(warning)
        webhook = self._plan.config.webhook
        if webhook is not None and is_unstored(webhook):
            view.message(UNSTORED_URL)
        cores = len(os.sched_getaffinity(0))
        workers = self._plan.workers.get("local", 0)
        if workers > cores:
            view.message(f"{workers} rollout workers on {cores} cores: fewer may be faster (--workers)")

    def _sum_up(self, directory: RunDirectory, teardown: Teardown) -> int:
        status, exit_code, error = self._outcome(directory, teardown)
        if exit_code == BAD_CONFIGURATION and not self._state.has_begun:
            directory.discard()
            self.refusal = error
            self._print(error, sys.stderr)
            return exit_code
        if not self._taken_over:
            self._record_environment(directory)
        self._summary = summarise(self._plan, self._state, status, exit_code, error, self._state.wall_s)
        self._write_summary(directory, to_json(self._summary))
        if not self._taken_over:
            self._files.attempt("run.json", directory.mark_ended, time.time())
        self._print(final_lines(self._summary))
        if self._state.finished is not None and self._state.finished.final_stopped:
            teardown = replace(teardown, killed=tuple(who for who in teardown.killed if "/evaluator-" not in who))
            limit_s = self._plan.config.evaluator.final_limit_s
            cause = f"the final evaluation was stopped at its time limit (evaluator.final_limit_s: {limit_s:g} s)"
            self._print(f"  {cause}; the checkpoints are complete" if error is None else f"  {cause}")
        self._print(f"  {_teardown_line(teardown)}; results in {directory.path}")
        resume = f"  resume with: {resume_command(directory.path)}"
        if error is not None:
            text = error.splitlines()[0] if self._problems_reported else error
            self._print(f"{status}: {text}\n{resume}", sys.stderr)
        elif status in ("interrupted", "stopped"):
            self._print(resume)
        return exit_code

    def _write_summary(self, directory: RunDirectory, summary: Mapping[str, Any]) -> None:
        try:
            if self._is_taken_over(directory):
                raise PermissionError("the run directory belongs to another run")
            directory.write_summary(summary)
        except OSError as error:
            print(f"summary.json cannot be written: {error}; its content:", file=sys.stderr)
            print(json.dumps(summary), file=sys.stderr, flush=True)

    def _outcome(self, directory: RunDirectory, teardown: Teardown) -> tuple[Status, int, str | None]:
        """2 before 1 before 4 (not ready) before 3; then interrupted, stopped, done."""
        state = self._state
        if state.agent_exit == BAD_CONFIGURATION and not state.workers and not state.is_learner_ready:
            return "failed", BAD_CONFIGURATION, state.agent_fault or "the host agent rejected the configuration"
        # A learner that finds its directory taken over before the launcher does exits with code 2 as well.
        if state.failure is not None and state.refused is not None and not self._is_taken_over(directory):
            return "failed", BAD_CONFIGURATION, state.refused
        request = self._signals.request
        failure = state.failure or self._lost_agent(request)
        if failure is not None and request is not Request.KILL:
            return "failed", TOO_FEW if self._no_hosts_at_start else FAILED, failure
        left = f"processes remain after the teardown: {', '.join(sorted(teardown.left))}"
        if self._not_ready_error is not None:  # usually with hosts that cannot be reached
            return "failed", TOO_FEW, f"{self._not_ready_error}; {left}" if teardown.left else self._not_ready_error
        if teardown.left:
            return "failed", UNCLEAN, left
        cut_off = request is Request.NONE and state.cut_off is not None
        if cut_off or request in (Request.INTERRUPT, Request.KILL):
            return "interrupted", INTERRUPTED, None
        stopped = request is Request.STOP or (state.ended is not None and state.ended.reason == STOP)
        if state.ended is None and not stopped:
            return "failed", FAILED, "the learner has not reported the end of the training"
        return ("stopped" if stopped else "done"), DONE, None

    def _lost_agent(self, request: Request) -> str | None:
        if self._state.finished or request is Request.KILL:
            return None
        agent, lost = f"the host agent of {self._plan.config.learner.host}", lost_agent(self._state)
        if self._state.agent_fault is not None:
            return f"{agent} failed: {self._state.agent_fault}"
        return lost.cause if lost is not None else f"{agent} died"


def _teardown_line(teardown: Teardown) -> str:
    parts = [f"{teardown.ended} process{'' if teardown.ended == 1 else 'es'} ended"]
    if teardown.killed:
        parts.append(f"killed {few(sorted(teardown.killed), MOST_KILLED_NAMED)}")
    parts.append(f"LEFT {', '.join(sorted(teardown.left))}" if teardown.left else "0 left")
    return ", ".join(parts)
