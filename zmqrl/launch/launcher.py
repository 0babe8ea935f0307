"""Launching a run: deploy, watch, write down, tear down, sum up."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.launch.action_runner import ActionRunner
from zmqrl.launch.end_notices import notify_end
from zmqrl.launch.lease_renewal import LeaseRenewal
from zmqrl.launch.run.machine import RunMachine
from zmqrl.launch.run.problem_reports import AdvisoryWrites, lost_agent
from zmqrl.launch.run.state import RunState
from zmqrl.launch.run_output import RunOutput
from zmqrl.launch.stop_signals import StopFile, StopRequest, StopSignals, is_main_thread
from zmqrl.launch.summary import end_lines, summarise
from zmqrl.logs.standard_output import lossy_output
from zmqrl.messages.command import KillAll
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.planning.checked import initial_file
from zmqrl.run_files.lineage import last_seen
from zmqrl.run_files.run_directory import RunDirectory, resume_command
from zmqrl.summary import Summary
from zmqrl.wire.runtime_folder import private_folder, remove_left_folder

MONITOR_S = 0.1
STATUS_EVERY_S = 1.0


class Observer:
    """What a caller in this process sees of the run, in the thread of `Launcher.run`. A wait delays the launcher."""

    def on_event(self, event: HostEvent, state: RunState) -> bool:
        """After each event of the run was taken; False requests a stop."""
        return True

    def on_status(self, state: RunState) -> bool:
        """Once a second; False requests a stop."""
        return True


class Launcher:
    """One run. `run` is called once. Outside of the main thread it catches no signals: `request_stop` stops the run."""

    def __init__(
        self,
        plan: RunPlan,
        orchestrator: Orchestrator,
        directory: RunDirectory,
        plain: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        quiet: bool = False,
        observer: Observer | None = None,
    ) -> None:
        """`directory`: of the run, which this process owns; `quiet`: nothing is printed."""
        self._plan, self._orchestrator, self._directory = plan, orchestrator, directory
        self._plain, self._quiet = plain, quiet
        self._observer = observer or Observer()
        self._on_ready: Callable[[], None] | None = on_ready
        run_dir = Path(plan.run_dir)
        self._state = RunState(plan, last_seen=last_seen(run_dir) if plan.resume else None)
        self._machine = RunMachine(plan, self._state, orchestrator.refusal, time.monotonic())
        self._files = AdvisoryWrites(run_dir, self._state.note)
        private = private_folder(plan.run_id)
        self._actions = ActionRunner(self._machine, plan, orchestrator, self._files, private)
        self._leases = LeaseRenewal(orchestrator, plan.config.store.wait_s)
        self._signals, self._stop_file = StopSignals(), StopFile(run_dir)
        self._is_taken_over = False
        self._status_at = 0.0
        self.summary: Summary | None = None
        """The summary, once `run` has returned and anything was started."""
        self.refusal: str | None = None
        """Why a process of the run rejected the configuration: nothing is left of the run."""

    def request_stop(self, request: StopRequest = StopRequest.STOP) -> None:
        """Any thread: as `zmqrl stop`, or as a signal."""
        self._signals.request = max(self._signals.request, request)

    def run(self) -> int:
        """Carry out the run, from its directory to its summary. Returns the exit code."""
        with self._directory.discarded_on_error():
            initial = initial_file(self._plan)
        with ExitStack() as until_the_end:
            owned = until_the_end.enter_context(ExitStack())
            owned.callback(self._files.attempt, "the owner's record", self._directory.release)
            if is_main_thread():  # both change the whole process
                until_the_end.enter_context(self._signals.caught())
                until_the_end.enter_context(lossy_output())
            with owned:
                self._directory.begin(self._plan, initial, self._orchestrator.job)
                output = RunOutput(self._plan, self._state, self._directory, self._files, self._quiet)
                self._stop_file.is_requested()  # one that came too late for the attempt before
                code = self._run_in(output)
            if self.summary is not None and not self._is_taken_over:  # the directory is free: `on_end` may resume
                further = self._signals.further()
                for problem in notify_end(self._plan.config, self._directory.path, self.summary, further):
                    output.print(problem, sys.stderr)
            return code

    def _run_in(self, output: RunOutput) -> int:
        broken: Exception | None = None
        try:
            self._actions.begin(time.monotonic())
        except ConfigError:
            self._directory.discard()
            raise
        except Exception as error:  # noqa: BLE001 - agents may run already: below they are ended
            broken = error
        try:
            if broken is not None:
                raise broken
            self._leases.start()
            output.start(self._plain)
            self._actions.show = output.show
            self._watch(output)
        except Exception as error:  # noqa: BLE001 - the top loop: whatever it is, the run is ended and summed up
            traceback.print_exc()
            self._state.fail(f"the launcher failed: {type(error).__name__}: {error}")
        finally:
            self._leases.end()
            teardown = self._actions.undeploy(self._machine.end_policy.grace_s(self._signals.request))
            self._state.now = time.monotonic()  # the end of the last process, which no event need report
            output.show_problems()
            if not teardown.left:
                remove_left_folder(self._plan.run_id)
            for event in self._orchestrator.monitor(0.0):
                self._take_last(event, output)
            output.close(self._is_taken_over)
        code = self._sum_up(output, teardown)
        is_killed = self._signals.request is StopRequest.KILL
        output.finish_copies(self._is_taken_over or self.refusal is not None, is_killed, self._signals.further())
        return code

    def _watch(self, output: RunOutput) -> None:
        while self._state.agent_exit is None:
            for event in self._orchestrator.monitor(MONITOR_S):
                self._take(event, output)
                self._confirm()
            self._confirm()
            now = time.monotonic()
            self._actions.tick(now, self._signals.request, self._signals.same_presses)
            output.show_problems()
            if self._actions.is_left:
                return
            if now >= self._status_at:
                self._status_at = now + STATUS_EVERY_S
                if self._look_for_successor():
                    return
                output.write_status()
                self._observe(self._observer.on_status(self._state))
                if self._stop_file.is_requested():
                    self.request_stop()
            output.update(now)
        lost = lost_agent(self._state)
        if lost is not None and self._signals.request is not StopRequest.KILL:
            self._state.note(lost)
        output.show_problems()
        output.write_status()

    def _confirm(self) -> None:
        """After each event too: each may wait for a file server that is away, and report an error at last."""
        blocked = self._leases.confirm(time.monotonic())
        if blocked is not None:
            self._state.note(blocked)

    def _look_for_successor(self) -> bool:
        """Whether another launcher owns the directory: nothing more is written there, no checkpoint either."""
        successor = self._directory.successor
        if successor is not None:
            self._is_taken_over = True
            taken_over = f"run directory {self._directory.path} was taken over by {successor}"
            self._state.fail(f"{taken_over}: this launcher sent no heartbeat", replaces=True)
            self._orchestrator.command(None, KillAll())
        return self._is_taken_over

    def _take(self, event: HostEvent, output: RunOutput) -> None:
        self._actions.take(event, time.monotonic())
        output.take(event)
        self._observe(self._observer.on_event(event, self._state))
        # While the run stops, the hosts that have not left would count as all.
        is_stopping = self._signals.request is not StopRequest.NONE
        is_ready = self._state.all_ready and not self._state.hosts.unusable_others
        if self._on_ready is not None and is_ready and not is_stopping:
            self._on_ready()
            self._on_ready = None

    def _take_last(self, event: HostEvent, output: RunOutput) -> None:
        """Take an event like `_take`; after a failure only what the summary needs."""
        if self._state.failure is None:
            self._take(event, output)
        else:
            self._machine.handle(event, time.monotonic())

    def _observe(self, continues: bool) -> None:
        if not continues and self._state.ended is None:  # else it is over, and was not stopped
            self.request_stop()

    def _sum_up(self, output: RunOutput, teardown: Teardown) -> int:
        # A learner that finds its directory taken over before the launcher does exits with code 2 as well.
        is_taken_over = self._state.refused is not None and self._look_for_successor()
        outcome = self._machine.end_policy.outcome(self._state, self._signals.request, teardown, is_taken_over)
        if outcome.is_refusal and not self._state.has_begun:
            self._directory.discard()
            self.refusal = outcome.error
            output.print(outcome.error, sys.stderr)
            return outcome.exit_code
        if not self._is_taken_over:
            output.write_environment()
        status, exit_code, error = outcome.status, outcome.exit_code, outcome.error
        self.summary = summarise(self._plan, self._state, status, exit_code, error, self._state.wall_s)
        output.write_summary(self.summary, self._look_for_successor())
        output.print(end_lines(self.summary, self._state, teardown, self._directory.path))
        resume = f"  resume with: {resume_command(self._directory.path)}"
        if error is not None:
            text = error.splitlines()[0] if output.problems_shown else error
            output.print(f"{status}: {text}\n{resume}", sys.stderr)
        elif status in ("interrupted", "stopped"):
            output.print(resume)
        return exit_code
