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
    """Two limits of async.

    Off-policy, env steps may run ahead of `updates / ratio + learning_starts` by at most the slack. On-policy, no more
    is collected than the learner uses until `run.total_env_steps`: it ends with the batch that reaches this total.
    """

    def __init__(self, plan: RunPlan) -> None:
        env, replay, leases = plan.config.env, plan.config.replay, plan.config.limits.leases_per_worker
        self._on = not plan.config.mode.deterministic and not plan.on_policy
        self._segment_rows = env.num_envs * env.segment_steps
        self._ratio, self._learning_starts = replay.ratio, replay.learning_starts
        self._slack = replay.slack or least_slack(plan.total_workers, leases, self._segment_rows, replay.ratio)
        self._updates = self._trained = 0
        self._ends = not plan.config.mode.deterministic and plan.on_policy
        self._total_env_steps = plan.config.run.total_env_steps
        self._batch_rows = plan.batch_segments * self._segment_rows
        self._arena_rows = plan.slots * self._segment_rows

    def report(self, env_steps: int, updates: int) -> None:
        """Where the learner is: also behind its predecessor, when it continues from a full checkpoint."""
        self._trained, self._updates = env_steps, updates

    @property
    def is_far_from_the_end(self) -> bool:
        """Whether the learner has use for all that the arena can hold."""
        return not self._ends or self._trained + self._arena_rows <= self._total_env_steps

    def has_use_for(self, held: int, outstanding: int) -> bool:
        """Whether the learner may need one more segment than it has not used yet, and than are leased.

        While fewer segments than a batch are held, the answer is yes until the total is reached: the run ends.
        """
        rows = (held + outstanding + 1) * self._segment_rows
        return self._trained + rows <= self._total_env_steps + self._batch_rows

    def allows(self, stored: int, outstanding: int) -> bool:
        """Whether one more lease may go out: `stored` rows of the whole run, `outstanding` leases."""
        if not self._on:
            return True
        rows = stored + (outstanding + 1) * self._segment_rows
        return self._ratio * (rows - self._learning_starts - self._slack) <= self._updates
