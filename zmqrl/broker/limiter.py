"""The broker's side of the two-sided rate limiter: charged when a lease is given."""

from __future__ import annotations

import math
from collections.abc import Callable

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

    Off-policy, env steps may run ahead of `updates / ratio + learning_starts` by at most the slack. On-policy, the run
    ends with the batch that reaches `run.total_env_steps`, and no more is collected than this batch needs.
    """

    def __init__(self, plan: RunPlan) -> None:
        env, replay, leases = plan.config.env, plan.config.replay, plan.config.limits.leases_per_worker
        self._async, self._on_policy = not plan.config.mode.deterministic, plan.on_policy
        self._segment_rows = env.num_envs * env.segment_steps
        self._ratio, self._learning_starts = replay.ratio, replay.learning_starts
        self._slack = replay.slack or least_slack(plan.total_workers, leases, self._segment_rows, replay.ratio)
        self._total_env_steps = plan.config.run.total_env_steps
        self._batch_rows = plan.batch_segments * self._segment_rows
        self._arena_rows = plan.slots * self._segment_rows
        self._env_steps = self._updates = 0

    def report(self, env_steps: int, updates: int) -> None:
        """Where the learner is: also behind its predecessor, when it continues from a full checkpoint."""
        self._env_steps, self._updates = env_steps, updates

    def allows(self, stored: int, outstanding: int, count_held: Callable[[], int]) -> bool:
        """Whether one more lease may be given.

        Args:
            stored: Rows of the whole run.
            outstanding: Leases.
            count_held: Returns the number of segments that the learner has not released.
        """
        if not self._async:
            return True
        if self._on_policy:
            return self._is_far_from_the_end or self._is_needed(count_held() + outstanding + 1)
        rows = stored + (outstanding + 1) * self._segment_rows
        return self._ratio * (rows - self._learning_starts - self._slack) <= self._updates

    @property
    def _is_far_from_the_end(self) -> bool:
        """Whether the learner needs more than the arena can hold."""
        return self._env_steps + self._arena_rows <= self._total_env_steps

    def _is_needed(self, segments: int) -> bool:
        """Whether the learner may need so many segments. It does while they are less than a batch: no deadlock."""
        return self._env_steps + segments * self._segment_rows <= self._total_env_steps + self._batch_rows
