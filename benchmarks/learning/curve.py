"""What a run shows over its env steps and its time, and what several runs show together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.peers.steps import LAST, Steps

POINTS, RESAMPLES = 50, 2000


@dataclass(frozen=True)
class Point:
    """A moment of a run."""

    env_steps: int
    wall_s: float
    """Since the command."""
    score: float
    """Mean return of the last `LAST` training episodes, of all while there are fewer."""


def curve(steps: Steps, began: float) -> list[Point]:
    """At most `POINTS` ends of episodes, at about equal distances in env steps; the last one is the last of the run."""
    records = np.concatenate(steps.envs)
    grown = np.concatenate([np.diff(env["steps"], prepend=0) for env in steps.envs])
    order = np.argsort(records["at"], kind="stable")
    records, totals = records[order], np.cumsum(grown[order])
    is_end = ~np.isnan(records["returned"])
    ends, totals_of_ends = records[is_end], totals[is_end]
    sums = np.cumsum(np.concatenate([[0.0], ends["returned"]]))
    marks = np.linspace(0, totals[-1], POINTS + 1)[1:]
    counts = np.unique(np.searchsorted(totals_of_ends, marks, side="right"))
    points = []
    for count in counts[counts > 0].tolist():
        first = max(0, count - LAST)
        score, wall_s = (sums[count] - sums[first]) / (count - first), ends["at"][count - 1] - began
        points.append(Point(int(totals_of_ends[count - 1]), round(float(wall_s), 2), round(float(score), 2)))
    return points


def score_at(points: Sequence[Point], key: str, mark: float) -> float | None:
    """Of the last moment until `mark`, in units of `key`; None: no episode had ended."""
    before = [point.score for point in points if getattr(point, key) <= mark]
    return before[-1] if before else None


def iqm(values: npt.ArrayLike) -> float:
    """Interquartile mean: of the middle half, in which the outer values may have a share (Agarwal et al. 2021)."""
    ordered = np.sort(np.asarray(values, np.float64))
    edges = np.linspace(0, 1, len(ordered) + 1)
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float(np.average(ordered, weights=weights))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the IQM of resampled seeds."""
    generator = np.random.default_rng(0)
    drawn = generator.choice(np.asarray(values, np.float64), (RESAMPLES, len(values)))
    low, high = np.percentile([iqm(row) for row in drawn], [2.5, 97.5])
    return float(low), float(high)
