"""A run with fewer workers than `min_workers`: it pauses for a limited time. Pure."""

from __future__ import annotations

from zmqrl.launch.run_state import RunState
from zmqrl.views.problem import Problem, counted

SETTLE_S = 2.0
"""A worker that is only restarted is back within this time."""


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
                paused_s = 0.0 if since is None else now - since
                return Problem("run", f"{_ready(ready)} again after {paused_s:.0f} s", "the run continues")
            return None
        self._since = now if self._since is None else self._since
        if state.paused or now - self._since < SETTLE_S:
            return None
        cause = state.pause_cause = f"{_ready(ready)}, min_workers is {required}{_who(state)}"
        action = f"the run is paused, for at most limits.too_few_s ({self._limit_s:g} s)"
        return Problem("run", cause, f"{action}; zmqrl scale HOST=N adds workers")

    def is_over(self, now: float) -> bool:
        """Whether the run has been paused for as long as it may be."""
        return self._since is not None and now - self._since >= self._limit_s


def _ready(workers: int) -> str:
    return f"{counted(workers, 'worker')} {'is' if workers == 1 else 'are'} ready"


def _who(state: RunState) -> str:
    """The hosts that are missing, and the workers that are not restarted."""
    hosts = [f"{row.host} is {row.state}" for row in state.hosts if row.workers and row.state != "ready"]
    workers = [f"{row.host}/worker-{row.index} failed" for row in state.workers.values() if row.state == "failed"]
    missing = ", ".join([*hosts, *workers])
    return f": {missing}" if missing else ""
