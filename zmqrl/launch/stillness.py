"""Detection of a run without progress although all its processes are alive."""

from __future__ import annotations

from zmqrl.launch.run_state import RunState
from zmqrl.views.problem import Problem


class Stillness:
    """Reports once per pause in which no env step was stored and no update done. Pure."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen = (0, 0, 0.0)
        self._since: float | None = None
        self._told = False

    def look(self, state: RunState, now: float) -> Problem | None:
        """The problem to report at `now`, in monotonic seconds; None also while the run starts or ends."""
        seen = (state.env_steps, state.stored, state.metrics.get("updates", 0.0))
        if self._since is None or seen != self._seen or state.ended or not (state.all_ready or any(seen)):
            self._seen, self._since, self._told = seen, now, False
        if self._told or now - self._since < self._after_s:
            return None
        self._told = True
        cause = f"no env step stored for limits.stalled_after_s ({self._after_s:g} s), at {state.env_steps:,}"
        return Problem("run", cause, f"{_who(state)}; zmqrl stop ends the run with a checkpoint")


def _who(state: RunState) -> str:
    workers = [row for row in state.workers.values() if row.state not in ("ready", "ended")]
    away = [f"{row.host}/worker-{row.index} is {row.state}" for row in workers]
    away += [f"host {row.host} is {row.state}" for row in state.hosts if row.state not in ("ready", "drained")]
    return ", ".join(away) if away else "all processes are running and responsive; see zmqrl logs"
