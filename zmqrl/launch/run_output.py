"""What the launcher shows and writes of a run: view, metrics, status, problems, the environment, copies elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from zmqrl.capacity import usable_cores
from zmqrl.config.codec import to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.config.webhook import is_unstored
from zmqrl.launch.end_notices import UNSTORED_URL
from zmqrl.launch.run.problem_reports import AdvisoryWrites
from zmqrl.launch.run.state import RunState
from zmqrl.launch.status import status_of
from zmqrl.logs.printable import printable
from zmqrl.messages.process import Metrics, VersionScore, WorkerRates
from zmqrl.metrics.recorder import Recorder
from zmqrl.orchestrators.base import HostEvent
from zmqrl.run_files.environment import EnvironmentWriter
from zmqrl.run_files.publication import Publication
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.url_mirror import UrlMirror, target_of
from zmqrl.summary import Summary
from zmqrl.views.base import View, make_view
from zmqrl.views.problem import Problem

COPY_S = 2.0
"""The last copy of a run usually takes less; the user is notified of a longer one."""
PROBLEMS_LOG = "problems.log"

RECORDED = (Metrics, VersionScore, WorkerRates)


def record(recorder: Recorder, event: HostEvent, state: RunState) -> None:
    """Write the figures of an event of a type in `RECORDED`. OSError: they are lost."""
    match event.event:
        case Metrics() as metrics:
            recorder.record(state.wall_s, state.env_steps, metrics.values)
        case VersionScore() as score:
            scores = {"eval_return_mean": score.return_mean, "eval_return_std": score.return_std}
            scores |= {f"eval_report/{name}": mean for name, mean in score.reports.items()}
            if state.plan.config.mode.offline:
                scores["updates"] = score.updates
            recorder.record(state.wall_s, score.env_steps, scores)
        case WorkerRates() as worker if event.index is not None:
            rates = {"env_steps_per_s": worker.env_steps_per_s, "wait_fraction": worker.wait_fraction}
            recorder.record_worker(state.wall_s, state.env_steps, event.index, rates)


class RunOutput:
    """Owned by the launcher's main thread. A file that cannot be written is reported, and the run continues."""

    def __init__(
        self, plan: RunPlan, state: RunState, directory: RunDirectory, files: AdvisoryWrites, quiet: bool
    ) -> None:
        """`quiet`: nothing is printed."""
        self._plan, self._state, self._directory, self._files = plan, state, directory, files
        self._quiet = quiet
        self._view = View()
        self._recorder = Recorder(directory.path, plan.started_at, plan.lineage.attempt)
        self._problems_log = directory.path / "logs" / PROBLEMS_LOG
        self._environment, self._publication = EnvironmentWriter(plan), Publication(plan)
        self._target = target_of(plan)
        self._mirror: UrlMirror | None = None
        self.problems_shown = 0

    def start(self, plain: bool) -> None:
        """Show the run from now on, and its warnings. `plain`: lines instead of the live view."""
        self._view = make_view(plain, self._quiet)
        warnings, webhook = list(self._plan.warnings), self._plan.config.webhook
        if webhook is not None and is_unstored(webhook):
            warnings.append(UNSTORED_URL)
        cores, workers = usable_cores(), self._plan.workers.get(LOCAL, 0)
        if workers > cores:
            warnings.append(f"{workers} rollout workers on {cores} cores: fewer may be faster (--workers)")
        for warning in warnings:
            self._view.message(warning, "warning")

    def show(self, text: str) -> None:
        """A line of the view."""
        self._view.message(text)

    def print(self, text: object, stream: TextIO | None = None) -> None:
        """After the view was closed: to stdout, unless `stream` is given."""
        if not self._quiet:
            with suppress(OSError, ValueError):  # closed; `lossy_output` is for the main thread alone
                print(printable(str(text)), file=stream, flush=True)

    def take(self, event: HostEvent) -> None:
        """An event that the state has taken in: metrics, and copies once no host can refuse the attempt.

        Until then the copy belongs to the attempt before.
        """
        if self._mirror is None and self._target is not None and self._state.has_begun:
            self._mirror = UrlMirror(self._plan, self._target, self._state.note)
        if isinstance(event.event, RECORDED):
            self._files.attempt("metrics", record, self._recorder, event, self._state)

    def show_problems(self) -> None:
        """Show the problems that are new, and append them to their log."""
        problems = self._state.noted_since(self.problems_shown)
        self.problems_shown = self._state.noted
        for problem in problems:
            self._view.message(problem.shown, problem.severity)
            self._files.attempt("a log", self._log, problem)  # a failure is a problem too: shown at the next call

    def _log(self, problem: Problem) -> None:
        with self._problems_log.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(problem.shown)}\n")

    def update(self, now: float) -> None:
        """Redraw the view, if that is due at `now`, in monotonic seconds."""
        self._view.update(self._status, now)

    def write_status(self) -> None:
        """`status.json`, and what all users see of it; once no host can refuse the attempt, the environment."""
        status = self._status()
        self._files.attempt("status.json", self._directory.write, "status.json", status)
        self._publication.renew(status)
        if self._state.has_begun and self._environment.is_due:
            self.write_environment()

    def write_environment(self) -> None:
        """At the end of an attempt at the latest."""
        self._files.attempt("environment", self._environment.write, self._directory.path)

    def close(self, is_taken_over: bool) -> None:
        """All processes have ended. `is_taken_over`: the directory is another launcher's."""
        self._publication.end()
        if not is_taken_over:
            self._files.attempt("metrics", self._recorder.record_workers, self._state.wall_s, self._state.env_steps)
        self._files.attempt("metrics", self._recorder.close)
        self._view.close(self._status)

    def write_summary(self, summary: Summary, is_taken_over: bool) -> None:
        """`summary.json`; to stderr where it cannot be written."""
        content = to_json(summary)
        try:
            if is_taken_over:
                raise PermissionError("the run directory belongs to another run")
            self._directory.write_summary(content)
        except OSError as error:
            print(f"summary.json cannot be written: {error}; its content:", file=sys.stderr)
            print(json.dumps(content), file=sys.stderr, flush=True)
        if not is_taken_over:
            self._files.attempt("run.json", self._directory.mark_ended, time.time())

    def finish_copies(self, is_abandoned: bool, is_killed: bool, interrupted: Callable[[], bool]) -> None:
        """The run has ended and is summed up; only its copies elsewhere are waited for, until the user interrupts it.

        `is_abandoned`: the directory is another launcher's, or removed. `is_killed`: the user does not wait.
        """
        mirror, reported = self._mirror, self._state.noted
        if mirror is None:
            return
        if is_abandoned:
            mirror.abandon()
            return
        mirror.end()
        is_complete = mirror.is_complete(COPY_S, interrupted)
        if mirror.is_alive and not is_killed:
            wait_s = self._plan.config.store.wait_s
            self.print(f"waiting for the copy at {mirror.url}, {wait_s:g} s at most (store.wait_s)")
            is_complete = mirror.is_complete(wait_s, interrupted)
        mirror.abandon()
        for problem in self._state.noted_since(reported):
            self.print(problem, sys.stderr)
        if not is_complete:
            self.print(f"{mirror.content} are not all at {mirror.url}; see {self._plan.run_dir}", sys.stderr)

    def _status(self) -> dict[str, Any]:
        return status_of(self._state, time.time(), self._state.wall_s)
