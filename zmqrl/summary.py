"""`summary.json`: the fields, in this order. The module imports nothing of the package: errors name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
Status = Literal["done", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class RestartCause:
    """Why processes of a role were restarted. Causes that differ in numbers alone are one."""

    role: str
    """Role of the processes."""
    cause: str
    """Cause of the first restart."""
    count: int
    """Restarts."""


@dataclass(frozen=True)
class Summary:
    """Null where the run ended before it was known."""

    status: Status
    """How the run ended."""
    exit_code: int
    """Exit code of the command."""
    error: str | None
    """First cause of a failure."""
    run_id: str
    """Id of this attempt."""
    mode: str
    """`run.mode`."""
    algorithm: str
    """`algorithm.kind`."""
    env: str
    """`env.id`."""
    seed: int
    """`run.seed`."""
    workers: int
    """Rollout workers of the plan."""
    env_steps: int | None
    """Valid rows stored, over all attempts."""
    updates: int | None
    """Optimiser steps."""
    episodes: int | None
    """Finished training episodes."""
    wall_s: float
    """Seconds from the start of the command to the end of the last process."""
    first_env_step_s: float | None
    """Seconds from the start of the command to the first env step."""
    env_steps_per_s: float | None
    """Mean after the first quarter of the env steps."""
    updates_per_s: float | None
    """Mean after the first quarter of the env steps."""
    updates_lost: int | None
    """Updates that were lost when a learner died."""
    train_return_mean_100: float | None
    """Mean return of the last 100 training episodes."""
    eval_return_mean: float | None
    """Mean return of the evaluator's last complete score."""
    eval_episodes: int | None
    """Episodes of that score."""
    solved_at_env_steps: int | None
    """When the last 100 training episodes reached the reward threshold of the env."""
    solved_at_wall_s: float | None
    """The same in seconds."""
    policy_lag: Mapping[str, float] | None
    """Versions published between the version of a segment and its use: mean, p50, p99, max."""
    replay_ratio: float | None
    """updates / (env_steps - `replay.learning_starts`)."""
    ledger: Mapping[str, Any] | None
    """Account of all rows."""
    weights_sha256: str | None
    """Digest of the final network."""
    restarts: int
    """Restarts of all processes."""
    peak_pss_mb: Mapping[str, float]
    """Memory of the largest process of each role, in 10^6 bytes."""
    bottleneck: str | None
    """workers, learner, bus or store."""
    checkpoint_interval_s: float | None = None
    """Seconds from one durable FULL to the next at the end: `run.checkpoint_every_s`, or longer."""
    recovery: str | None = None
    """`env.recovery`, except in async: with restart_episode the bits also depend on deaths, resumes, lost workers."""
    resumed_from: Mapping[str, Any] | None = None
    """version, env_steps and written_at (unix time) of the FULL that this attempt continued from."""
    last_seen: Mapping[str, Any] | None = None
    """env_steps and at (unix time) of the last line that earlier attempts left in `metrics.jsonl`."""
    eval_reports: Mapping[str, float] = field(default_factory=dict)
    """Means of the numbers of `env.report` over the episodes of the evaluator's last complete score."""
    slowest: str | None = None
    """Sync: the worker that the others waited for at the end, and how much slower it was."""
    schema: int = SCHEMA
    """Version of this table: new fields are added under the same number, and none changes its meaning."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of zmqrl, Python, torch, gymnasium, numpy on the launcher's machine (`environment/attempt-N.json`)."""
    attempts: int = 1
    """Lifetimes of the launcher of this run: 1, and one more for each resume."""
    trained_env_steps: int | None = None
    """Env steps that the last command stored: those of this attempt; 0 if it found nothing to train."""
    relieved: Sequence[str] = ()
    """Sync: workers that had fewer vector envs at the end because they were slower."""
    restart_causes: Sequence[RestartCause] = ()
    """The most frequent causes of `restarts`, the most frequent first."""
    train_reports: Mapping[str, float] = field(default_factory=dict)
    """Means of the numbers of `env.report` over the last 100 training episodes."""
