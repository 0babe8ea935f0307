"""Problems that the launcher itself finds: failed writes, an agent that ended, a run without progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from zmqrl.launch.run_state import RunState
from zmqrl.logs.standard_output import tail_of
from zmqrl.views.problem import Problem

Arguments = ParamSpec("Arguments")


class AdvisoryWrites:
    """Reports the first write that fails, and when all that failed succeed again. Owned by the main thread."""

    def __init__(self, run_dir: Path, report: Callable[[Problem], None]) -> None:
        self._where, self._report = f"run directory {run_dir}", report
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
                cause = f"{what} cannot be written: {error.strerror or error}"
                self._report(
                    Problem(self._where, cause, "the run continues, retrying; if the disk is full, free space there")
                )
            self._failing.add(what)
            return False
        if what in self._failing:
            self._failing.remove(what)
            if not self._failing:
                failed_s = time.monotonic() - self._since
                cause = f"{what} could not be written for {failed_s:.1f} s"
                self._report(Problem(self._where, cause, "writes succeed again"))
        return True


def lost_agent(state: RunState) -> Problem | None:
    """None while it runs, and when it ended in good order or reported its own fault."""
    if state.agent_exit is not None and state.cut_off is not None:
        return Problem(state.plan.config.learner.host, state.cut_off, "the learner was there: resume the run")
    if state.agent_exit is None or state.finished is not None or state.agent_fault is not None:
        return None
    host = state.plan.config.learner.host
    log = Path(state.plan.run_dir) / "logs" / f"{host}-agent-0.log"
    tail = tail_since(log, state.plan.started_at)
    ends = "its processes and the run end"
    return Problem(f"{host}/agent-0", str(state.lost_agent_cause), ends, log=str(log), log_tail=tail)


def tail_since(log: Path, since: float) -> tuple[str, ...]:
    """The last lines of a log; none without an entry after unix time `since`: they are an earlier run's."""
    try:
        return tail_of(log) if log.stat().st_mtime >= since else ()
    except OSError:
        return ()


SLOW_S = 30.0
"""So long a worker must be the slowest before it is reported."""


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
        is_paused = state.paused or (not state.remaining_workers and any(row.away for row in state.hosts))
        if is_paused or self._since is None or seen != self._seen or state.ended or not (state.all_ready or any(seen)):
            self._seen, self._since, self._is_reported = seen, now, False
        if self._is_reported or now - self._since < self._after_s:
            return None
        self._is_reported = True
        cause = f"no env step stored for limits.stalled_after_s ({self._after_s:g} s), at {state.env_steps:,}"
        return Problem("run", cause, f"{_who(state)}; zmqrl stop ends the run with a checkpoint")


class SlowWorkerReport:
    """Reports a host once it has held the other workers of a sync run for `SLOW_S`. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def check(self, state: RunState, now: float) -> Problem | None:
        """The problem to report at `now`, in monotonic seconds."""
        late = state.slowest_worker
        self._since = {} if late is None else {late.host: self._since.get(late.host, now)}
        if late is None or late.host in self._reported or now - self._since[late.host] < SLOW_S:
            return None
        self._reported.add(late.host)
        several = sum(row.workers > 0 for row in state.hosts) > 1
        others = "those of the other hosts" if several else "the others"
        cause = f"worker {late.worker} is {late.factor:.1f} times slower than {others}, which wait for it"
        fix = f"; zmqrl drain {late.host} moves its vector envs to the other hosts" if several else ""
        return Problem(late.host, cause, f"the run continues at the speed of this worker; check the load there{fix}")


HANGING = {"slow": "makes no progress", "stalled": "makes no progress", "lost": "sends no heartbeats"}
"""Of a process that has started, by the state in which it is judged to be."""


def _who(state: RunState) -> str:
    """The processes and hosts that a run without progress may be waiting for."""
    learner = "ready" if state.is_learner_ready else "not ready"
    processes = [
        ("worker", worker.index, worker.host, str(worker.state))
        for worker in state.workers.values()
        if worker.state != "ended"
    ]
    away = []
    for role, index, host, is_now in [*processes, ("learner", 0, state.plan.config.learner.host, learner)]:
        judged = state.hanging.get((role, index))
        if is_now != "ready":
            away.append(f"{host}/{role}-{index} is {is_now}")
        elif judged is not None:
            away.append(f"{host}/{role}-{index} {HANGING[judged]}")
    away += [
        f"host {row.host} is {row.state}" for row in state.hosts if row.state not in ("ready", "drained") or row.away
    ]
    return ", ".join(away) if away else "all processes are running and responsive; see zmqrl logs"
