"""The reasons to end a run: its stop conditions, a stop request, and `run.max_wall_s`."""

from __future__ import annotations

import time

from zmqrl.config.plan import RunPlan
from zmqrl.learner.counters import RunProgress

MARGIN_S = 0.5
"""How long after `run.max_wall_s` a round that should be complete by then is still waited for."""


class EndConditions:
    """Every wait of a loop reads it. A round that is under way is completed if that takes no longer than usual."""

    def __init__(self, plan: RunPlan) -> None:
        self._run = plan.config.run
        self._wall_by = plan.began + (plan.config.run.max_wall_s or float("inf"))
        self._stop_grace_s = plan.config.limits.grace_s / 2
        self._stop_at: float | None = None
        self._round_began, self._round_s = time.monotonic(), 0.0

    def request_stop(self) -> None:
        """End at the next opportunity; the second time without the round under way. Safe in a signal handler."""
        if self._stop_at is not None:
            self._stop_grace_s = 0.0
        self._stop_at = self._stop_at or time.monotonic()

    def round_ended(self) -> None:
        """A version boundary was passed: what a round takes is known from the newest one."""
        now = time.monotonic()
        self._round_s, self._round_began = now - self._round_began, now

    @property
    def stop_requested(self) -> bool:
        """Whether the end was requested."""
        return self._stop_at is not None

    def goal_reached(self, progress: RunProgress) -> str | None:
        """The stop condition that the run has met; also read by a learner that begins from the last FULL of a run."""
        counters, run, mean = progress.counters, self._run, progress.episodes.mean_of_full_window
        if run.stop_at_return is not None and mean is not None and mean >= run.stop_at_return:
            return "stop_at_return"
        if counters.env_steps >= run.total_env_steps:
            return "total_env_steps"
        if run.stop_at_updates is not None and counters.updates >= run.stop_at_updates:
            return "stop_at_updates"
        return None

    def reason_at_boundary(self, progress: RunProgress) -> str | None:
        """Why the run is to end at a version boundary that is passed now; None: it continues."""
        return self.goal_reached(progress) or self.reason

    @property
    def reason(self) -> str | None:
        """`max_wall_s` or `stop` once the run is to end at the next boundary, else None."""
        if time.monotonic() >= self._wall_by:
            return "max_wall_s"
        return None if self._stop_at is None else "stop"

    @property
    def overdue(self) -> str | None:
        """The same once no boundary is to be waited for any more: the round under way is abandoned."""
        if time.monotonic() >= self._wall_by + MARGIN_S + self._round_s:
            return "max_wall_s"
        if self._stop_at is not None and time.monotonic() >= self._stop_at + self._stop_grace_s:
            return self.reason
        return None

    def is_overdue(self) -> bool:
        """Whether `overdue` has a reason."""
        return self.overdue is not None
