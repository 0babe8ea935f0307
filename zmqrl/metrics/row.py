"""A line of `metrics.jsonl` as a type. Lines differ in what they have: the source of each is named."""

from __future__ import annotations

from dataclasses import dataclass

WORKER = r"^worker_\d+_(env_steps_per_s|wait_fraction)$"
"""Names of the figures of each worker, which are recorded once a minute and at the end of the run."""


@dataclass(frozen=True)
class MetricsRow:
    """One line: `wall_s`, `env_steps`, and what was measured then. TensorBoard has the same names.

    An algorithm adds its own figures, such as losses, and the values of its schedules.
    """

    wall_s: float
    """Seconds from the start of the command that this attempt is of."""
    env_steps: int
    """Valid rows stored by then; of a score: those of its version."""
    updates: float | None = None
    """Optimiser steps. This and what follows is of the learner."""
    version: float | None = None
    """Number of the newest published version."""
    episodes: float | None = None
    """Finished training episodes."""
    train_return_mean_100: float | None = None
    """Mean return of the last 100 training episodes."""
    train_length_mean_100: float | None = None
    """Their mean length."""
    env_steps_per_s: float | None = None
    """Over the last 5 s."""
    updates_per_s: float | None = None
    """Over the last 5 s."""
    wait_fraction: float | None = None
    """Share of time in which the learner waited for segments."""
    store_wait_fraction: float | None = None
    """Share of time in which it wrote to the store."""
    policy_lag_mean: float | None = None
    """Versions published between the version of a segment and its use."""
    policy_lag_max: float | None = None
    """The greatest one."""
    replay_ratio: float | None = None
    """Off-policy: updates / (env_steps - `replay.learning_starts`)."""
    checkpoint_interval_s: float | None = None
    """Seconds between two durable full checkpoints."""
    eval_return_mean: float | None = None
    """Mean return of a score of the evaluator."""
    eval_return_std: float | None = None
    """Standard deviation of its returns."""
