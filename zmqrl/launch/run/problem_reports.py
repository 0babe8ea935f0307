"""Problems that the launcher itself finds: failed writes, an agent that ended, a run without progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from zmqrl.capacity import disk_error
from zmqrl.launch.run import reports
from zmqrl.launch.run.bottleneck import slowest_worker
from zmqrl.launch.run.state import RunState
from zmqrl.logs.standard_output import tail_of
from zmqrl.types import Severity
from zmqrl.views.problem import Problem

Arguments = ParamSpec("Arguments")
SLOW_S = 30.0
"""So long a worker must be the slowest before it is reported."""


class AdvisoryWrites:
    """Reports the first write that fails, and when all that failed succeed again. Owned by the main thread."""

    def __init__(self, run_dir: Path, report: Callable[[Problem], None]) -> None:
        self._run_dir, self._report = run_dir, report
        self._failing: set[str] = set()
        self._since = 0.0

    def attempt(
        self, what: str, write: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> bool:
        """Whether `write` raised no OSError; `what` names the file. The caller tries again with its next data."""
        try:
            write(*args, **kwargs)
        except OSError as error:
            if not self._failing:
                self._since = time.monotonic()
                cause = f"{what} cannot be written: {disk_error(error, self._run_dir)}"
                self._note(cause, "the run continues, retrying; if the disk is full, free space there")
            self._failing.add(what)
            return False
        if what in self._failing:
            self._failing.remove(what)
            if not self._failing:
                failed_s = time.monotonic() - self._since
                cause = f"{what} could not be written for {failed_s:.1f} s"
                self._note(cause, "writes succeed again", "note")
        return True

    def _note(self, cause: str, action: str, severity: Severity = "warning") -> None:
        self._report(Problem(f"run directory {self._run_dir}", cause, action, severity=severity))


def lost_agent(state: RunState) -> Problem | None:
    """None while it runs, and when it ended in good order or reported its own fault."""
    if state.agent_exit is not None and state.cut_off is not None:
        fix = "the learner was there: resume the run"
        return Problem(state.plan.config.learner.host, state.cut_off, fix, severity="error")
    if state.agent_exit is None or state.finished is not None or state.agent_fault is not None:
        return None
    host = state.plan.config.learner.host
    log = Path(state.plan.run_dir) / "logs" / f"{host}-agent-0.log"
    tail = tail_since(log, state.plan.started_at)
    where, ends = f"{host}/agent-0", "its processes and the run end"
    return Problem(where, str(state.lost_agent_cause), ends, log=str(log), log_tail=tail, severity="error")


def tail_since(log: Path, since: float) -> tuple[str, ...]:
    """The last lines of a log; none without an entry after unix time `since`: they are an earlier run's."""
    try:
        return tail_of(log) if log.stat().st_mtime >= since else ()
    except OSError:
        return ()


class StallDetector:
    """Reports once per pause in which no env step was stored and no update done. Pure."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen = (0, 0, 0.0)
        self._since: float | None = None
        self._is_reported = False

    def check(self, state: RunState, now: float) -> Problem | None:
        """The problem to report at `now`, in monotonic seconds; None also while the run starts or ends."""
        seen = (state.env_steps, state.stored, state.metrics.get("updates", 0.0))
        is_paused = state.paused or (not state.hosts.remaining_workers and any(row.away for row in state.hosts))
        if is_paused or self._since is None or seen != self._seen or state.ended or not (state.all_ready or any(seen)):
            self._seen, self._since, self._is_reported = seen, now, False
        if self._is_reported or now - self._since < self._after_s:
            return None
        self._is_reported = True
        return reports.stalled(state, self._after_s)


class SlowWorkerReport:
    """Reports a host once it has held the other workers of a sync run for `SLOW_S`. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def check(self, state: RunState, now: float) -> Problem | None:
        """The problem to report at `now`, in monotonic seconds."""
        late = slowest_worker(state)
        self._since = {} if late is None else {late.host: self._since.get(late.host, now)}
        if late is None or late.host in self._reported or now - self._since[late.host] < SLOW_S:
            return None
        self._reported.add(late.host)
        return reports.slow_worker(late, state)
