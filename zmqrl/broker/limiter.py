"""The broker's side of the two-sided rate limiter: charged when a lease is given."""

from __future__ import annotations

import math

from zmqrl.config.plan import RunPlan

NEVER = 1e18
"""More env steps than a run can have: 1 / ratio overflows where the ratio is next to nothing."""


def least_slack(workers: int, leases_per_worker: int, segment_rows: int, ratio: float) -> int:
    """The least slack, in env steps: with less, workers and learner could wait for each other for ever.

    A segment for each lease; and where updates are rare, a segment beyond the `1 / ratio` env steps of one update,
    for a lease is charged as a whole and the learner counts whole updates.
    """
    return max(workers * leases_per_worker * segment_rows, segment_rows + math.ceil(min(1 / ratio, NEVER)))


class LeaseLimiter:
    """async, off-policy: env steps may run ahead of `updates / ratio + learning_starts` by at most the slack."""

    def __init__(self, plan: RunPlan) -> None:
        env, replay, leases = plan.config.env, plan.config.replay, plan.config.limits.leases_per_worker
        self._on = not plan.config.mode.deterministic and not plan.on_policy
        self._segment_rows = env.num_envs * env.segment_steps
        self._ratio, self._learning_starts = replay.ratio, replay.learning_starts
        self._slack = replay.slack or least_slack(plan.total_workers, leases, self._segment_rows, replay.ratio)
        self._updates = 0

    def report(self, updates: int) -> None:
        """Where the learner is."""
        self._updates = updates  # also less than before: a learner that went on from FULL is behind its predecessor

    def allows(self, stored: int, outstanding: int) -> bool:
        """Whether one more lease may go out: `stored` rows of the whole run, `outstanding` leases."""
        if not self._on:
            return True
        rows = stored + (outstanding + 1) * self._segment_rows
        return self._ratio * (rows - self._learning_starts - self._slack) <= self._updates
