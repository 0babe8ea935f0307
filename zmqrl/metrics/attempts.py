"""Which rows of `metrics.jsonl` count: a resume repeats what followed the full checkpoint that it continues from.

See decision 0057: docs/decisions/0057-the-last-attempt-counts-where-two-overlap.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zmqrl.metrics.jsonl import SCORE, read_metrics
from zmqrl.types import Array

FORMER = 0
"""The attempt of rows without one: they were written before rows had it."""


def is_current(attempt: Array, x: Array, is_score: Array) -> Array:
    """Whether each row counts, bool `[n]`: it is of the last attempt where two overlap.

    Args:
        attempt: `[n]` Number of the attempt of each row.
        x: `[n]` Its env steps; updates in a run without env steps.
        is_score: bool `[n]` Whether it is of the evaluator: such rows come late, and first scores come early.
    """
    current = np.ones(len(x), bool)
    trained = scored = math.inf
    for number in np.unique(attempt)[::-1]:
        for kind, limit in ((False, trained), (True, min(trained, scored))):
            rows = (attempt == number) & (is_score == kind)
            current[rows] = x[rows] < limit
        trained = min(trained, x[(attempt == number) & ~is_score].min(initial=math.inf))
        scored = min(scored, x[(attempt == number) & is_score].min(initial=math.inf))
    return current


def current_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a run that count, in the order of the file."""
    rows = list(read_metrics(path))
    return [row for row, counts in zip(rows, are_current(rows).tolist(), strict=True) if counts]


def are_current(rows: Sequence[Mapping[str, float]]) -> Array:
    """Whether each row of a run counts, bool `[n]`."""
    counted = counted_by(any(row["env_steps"] for row in rows))
    attempt = np.array([row.get("attempt", FORMER) for row in rows], np.float64)
    x = np.array([row.get(counted, 0.0) for row in rows], np.float64)
    return is_current(attempt, x, np.array([is_score_row(row) for row in rows], bool))


def counted_by(has_env_steps: bool) -> str:
    """What the progress of a run is counted in: updates in mode offline."""
    return "env_steps" if has_env_steps else "updates"


def is_score_row(row: Mapping[str, float]) -> bool:
    """Whether a row is of the evaluator: its env steps are those of the version."""
    return any(name.startswith(SCORE) for name in row)
