"""Launching a run: deploy, watch, write down, tear down, sum up."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.config.webhook import is_unstored
from zmqrl.data_stores.base import few
from zmqrl.errors import ConfigError, name_of
from zmqrl.launch.action_runner import ActionRunner
from zmqrl.launch.end_notices import UNSTORED_URL, notify_end
from zmqrl.launch.environment_record import EnvironmentWriter
from zmqrl.launch.initial_weights import initial_file
from zmqrl.launch.lease_renewal import LeaseRenewal
from zmqrl.launch.lineage import last_seen
from zmqrl.launch.problem_reports import AdvisoryWrites, lost_agent
from zmqrl.launch.run_directory import RunDirectory, resume_command
from zmqrl.launch.run_events import take
from zmqrl.launch.run_machine import RunMachine
from zmqrl.launch.run_state import RunState
from zmqrl.launch.status import status_of
from zmqrl.launch.stop_signals import Request, StopFile, StopSignals, is_main_thread
from zmqrl.launch.summary import Summary, final_lines, summarise
from zmqrl.launch.url_mirror import UrlMirror, target_of
from zmqrl.logs.printable import printable
from zmqrl.logs.standard_output import lossy_output
from zmqrl.messages import agent
from zmqrl.metrics.recorder import Recorder
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.supervision.restarts import BAD_CONFIGURATION
from zmqrl.views.base import QuietView, View, make_view
from zmqrl.views.problem import Problem
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

MONITOR_S = 0.1
STATUS_EVERY_S = 1.0
COPY_S = 2.0
"""The last copy of a run usually takes less; the user is notified of a longer one."""
MOST_KILLED_NAMED = 5
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
        self._machine = RunMachine(plan, self._state, orchestrator.refusal, time.monotonic())
        self._leases = LeaseRenewal(orchestrator, plan.config.store.wait_s)
        self._files = AdvisoryWrites(Path(plan.run_dir), self._state.note)
        private = private_folder(plan.run_id)
        self._actions = ActionRunner(self._machine, plan, orchestrator, self._files, private)
        self._signals = StopSignals()
        self._stop_file = StopFile(Path(plan.run_dir))
        self._target = target_of(plan)
        self._mirror: UrlMirror | None = None
        self._environment: EnvironmentWriter | None = None
        self._problems_reported = 0
        self._taken_over = False
        self._status_at = 0.0

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
            self._actions.begin(time.monotonic())
        except ConfigError:
            directory.discard()
            raise
        view: View = QuietView()
        recorder = Recorder(directory.path, self._plan.started_at)
        try:
            self._leases.start()
            view = make_view(self._plain, self._quiet)
            self._warn(view)
            self._actions.show = view.message
            self._watch(directory, recorder, view)
        except Exception as error:  # noqa: BLE001 - the top loop: whatever it is, the run is ended and summed up
            traceback.print_exc()
            self._state.fail(f"the launcher failed: {type(error).__name__}: {error}")
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
            return self._orchestrator.undeploy(self._machine.end_policy.grace_s(self._signals.request))
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
            self._actions.tick(now, self._signals.request, self._signals.same_presses)
            self._report_problems(view)
            if self._actions.is_left:
                return
            if now >= self._status_at:
                self._status_at = now + STATUS_EVERY_S
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
            cause = f"run directory {directory.path} was taken over by {successor}: this launcher sent no heartbeat"
            self._state.fail(cause, replaces=True)
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
        self._actions.take(event, time.monotonic())
        self._start_copies()
        if isinstance(event.event, RECORDED):
            self._files.attempt("metrics", self._record, event, recorder)
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
            take(self._state, event)

    def _report_problems(self, view: View) -> None:
        for problem in self._state.noted_since(self._problems_reported):
            view.message(str(problem))
        self._problems_reported = self._state.noted

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
        # A learner that finds its directory taken over before the launcher does exits with code 2 as well.
        is_taken_over = self._state.refused is not None and self._is_taken_over(directory)
        outcome = self._machine.end_policy.outcome(self._state, self._signals.request, teardown, is_taken_over)
        status, exit_code, error = outcome.status, outcome.exit_code, outcome.error
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


def _teardown_line(teardown: Teardown) -> str:
    parts = [f"{teardown.ended} process{'' if teardown.ended == 1 else 'es'} ended"]
    if teardown.killed:
        parts.append(f"killed {few(sorted(teardown.killed), MOST_KILLED_NAMED)}")
    parts.append(f"LEFT {', '.join(sorted(teardown.left))}" if teardown.left else "0 left")
    return ", ".join(parts)
