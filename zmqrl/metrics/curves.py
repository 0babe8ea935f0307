"""Curves of a plot from rows of metrics. Pure, but for reading the files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from zmqrl.errors import ConfigError
from zmqrl.metrics.attempts import FORMER, counted_by, is_current
from zmqrl.metrics.groups import METRICS, RunGroup
from zmqrl.metrics.jsonl import read_metrics
from zmqrl.metrics.metric_rows import MetricRows
from zmqrl.metrics.thinning import MOST_ADJUSTED_S, thinned
from zmqrl.types import Array

RETURN, EVALUATED = "train_return_mean_100", "eval_return_mean"
POINTS = 200
XAxis: TypeAlias = Literal["env_steps", "wall_s", "episodes"]
X_AXES: tuple[XAxis, ...] = ("env_steps", "wall_s")
"""The axes that are drawn unless others are named."""
CONFIDENCE, RESAMPLES, SEED = 0.95, 2_000, 0


@dataclass(frozen=True)
class Series:
    """One metric of one run, in the order of the file: a row each."""

    run: Path
    env_steps: Array
    """Updates of a run without env steps (mode offline)."""
    wall_s: Array
    """Cumulative over the attempts of the run."""
    episodes: Array
    """Finished training episodes; of a score: when its version was published. NaN in a run that counts none."""
    values: Array
    counts_updates: bool = False

    def x(self, axis: XAxis) -> Array:
        """Env steps, seconds or episodes."""
        return {"env_steps": self.env_steps, "wall_s": self.wall_s, "episodes": self.episodes}[axis]

    @property
    def last(self) -> Series:
        """A single row, of the most env steps; each x is 0."""
        newest, zero = np.argsort(self.env_steps, kind="stable")[-1:], np.zeros(1)
        return Series(self.run, zero, zero, zero, self.values[newest])


@dataclass(frozen=True)
class IqmCurve:
    """A metric of a group of runs: the IQM over the runs with its interval. Of one row, a single point.

    Where no run is, `value`, `low` and `high` are NaN.
    """

    x: Array
    value: Array
    low: Array
    high: Array
    runs: int
    there: Array
    """How many of the runs each point is of."""


@dataclass(frozen=True)
class Drawn:
    """What a group gives: its series, and what is not drawn."""

    series: tuple[Series, ...]
    left_out: tuple[str, ...]


def series_of(group: RunGroup, metric: str, window: int) -> Drawn:
    """The series of a metric, smoothed; runs without a row, or with one row where others have more, are left out.

    `window`: rows of the centred running mean; 1: none.
    """
    found, left_out = [], []
    for run in group.runs:
        read = MetricRows(run / METRICS, metric, cut_too=True)
        series = series_from(run, thinned(read).rows, window)
        if lines := read.unreadable:
            left_out.append(f"{run}: {lines} line{'s' if lines > 1 else ''} of {METRICS} without a valid row")
        if series is None:
            left_out.append(f"{run}: no row with {metric} yet")
        else:
            found.append(series)
    longer = [series for series in found if len(series.values) > 1]
    if longer:
        left_out += [f"{s.run}: a single row with {metric}" for s in found if len(s.values) == 1]
    return Drawn(tuple(longer or found), tuple(left_out))


def series_from(run: Path, rows: Array, window: int) -> Series | None:
    """The series of thinned `rows`, `[n]` of `thinning.ROW`; None: none that counts has the metric.

    `window` as of `series_of`: it has as many of them as have so many rows of the file.
    """
    counted = counted_by(bool(rows["env_steps"].any()))
    drawn = rows["is_measured"] & is_current(rows["attempt"], rows[counted], rows["is_score"])
    if not drawn.any():
        return None
    x, episodes = rows[counted][drawn], _episodes(rows, counted)[drawn]
    values = smoothed(rows["value"][drawn], round(window / rows["rows"][drawn].mean()))
    return Series(run, x, _cumulative_wall_s(rows)[drawn], episodes, values, counted == "updates")


def iqm(scores: Array) -> Array:
    """Interquartile mean `[...]` (Agarwal et al. 2021, section 4) of `scores [runs, tasks, ...]`, over both."""
    flat = np.sort(scores.reshape(-1, *scores.shape[2:]), axis=0)
    cut = len(flat) // 4
    mean: Array = flat[cut : len(flat) - cut].mean(axis=0)
    return mean


def resamples(runs: int, tasks: int, count: int = RESAMPLES, seed: int = SEED) -> Array:
    """Runs drawn with replacement, for each task on its own (its stratum): int64 `[count, runs, tasks]`."""
    return np.random.default_rng(seed).integers(0, runs, (count, runs, tasks))


def interval(scores: Array, indices: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Bounds `[...]` of a stratified bootstrap interval of the IQM of `scores [runs, tasks, ...]`, as in rliable.

    `indices`: from `resamples`. `confidence`: share of the distribution inside the interval.
    """
    tasks = np.arange(scores.shape[1])
    means = np.stack([iqm(scores[drawn, tasks]) for drawn in indices])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def smoothed(values: Array, window: int) -> Array:
    """Centred mean over `window` values; fewer at both ends."""
    if window <= 1:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    begin, end = np.maximum(at - (window - 1) // 2, 0), np.minimum(at + window // 2 + 1, len(values))
    mean: Array = (sums[end] - sums[begin]) / (end - begin)
    return mean


def curve_of(series: Sequence[Series], axis: XAxis) -> IqmCurve:
    """The IQM of the series over the range that all of them have.

    On the wall clock, and where they have no common range, it is over the ranges of all: at each point the IQM of the
    runs that are there.
    """
    xs = [s.x(axis) for s in series]
    starts, ends = [x.min() for x in xs], [x.max() for x in xs]
    low, high = max(starts), min(ends)
    grid = np.linspace(low, high, POINTS)
    if axis == "wall_s" or low >= high:
        grid = np.union1d(np.linspace(min(starts), max(ends), POINTS), [*starts, *ends])
    values = np.stack([_at(grid, x, s.values) for x, s in zip(xs, series, strict=True)])
    there = np.stack([(grid >= start) & (grid <= end) for start, end in zip(starts, ends, strict=True)])
    return IqmCurve(grid, *_bands(values, there), len(series), there.sum(axis=0))


def _bands(values: Array, there: Array) -> tuple[Array, Array, Array]:
    """IQM and bounds of its interval, each `[points]`, of `values [runs, points]` where `there`."""
    bands = np.full((3, values.shape[1]), np.nan)
    for present in there.T[:1] if there.all() else np.unique(there, axis=1).T:
        points = (there == present[:, None]).all(axis=0)
        scores = values[present][:, points][:, None]
        if len(scores):
            bounds = interval(scores, resamples(len(scores), 1)) if len(scores) > 1 else (scores[0, 0], scores[0, 0])
            bands[:, points] = iqm(scores), *bounds
    return bands[0], bands[1], bands[2]


def unknown_metric(groups: Sequence[RunGroup], metric: str) -> ConfigError:
    """The error for a metric that no run has: the nearest names."""
    names = {name for group in groups for run in group.runs for row in read_metrics(run / METRICS) for name in row}
    if not names:
        has_lines = any((run / METRICS).stat().st_size for group in groups for run in group.runs)
        return ConfigError(f"{METRICS} of the given runs {'has no valid row' if has_lines else 'is empty'}")
    near = difflib.get_close_matches(metric, names, n=1) if metric not in (RETURN, EVALUATED) else []
    what = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names))}"
    return ConfigError(f"metric {metric!r} is not in {METRICS} of the given runs", fix=what)


def _episodes(rows: Array, counted: str) -> Array:
    """Episodes of each row: between the rows that have them by env steps."""
    counts = rows[~np.isnan(rows["episodes"])]
    return _at(rows[counted], counts[counted], counts["episodes"]) if len(counts) else rows["episodes"]


def _at(grid: Array, x: Array, values: Array) -> Array:
    order = np.argsort(x, kind="stable")  # scores of the evaluator come late
    return np.interp(grid, x[order], values[order])


def _cumulative_wall_s(rows: Array) -> Array:
    """Cumulative seconds of each row: all earlier attempts, up to their last row, and those of its own attempt.

    `wall_s` of a row is counted from the start of its attempt. Attempts without a number are concluded from it.
    """
    former = rows[rows["attempt"] == FORMER]
    begins = [0, *_starts(former["wall_s"].tolist(), former["is_score"].tolist())]
    starts = np.union1d(begins, np.flatnonzero(np.diff(rows["attempt"])) + 1)
    attempt_s = np.fmax(np.fmax.reduceat(rows["wall_s"], starts), 0.0)
    earlier_s = np.cumsum(attempt_s) - attempt_s
    wall_s: Array = rows["wall_s"] + np.repeat(earlier_s, np.diff([*starts, len(rows)]))
    return wall_s


def _starts(wall_s: Sequence[float], is_score: Sequence[bool]) -> Iterator[int]:
    """Where `wall_s` decreases, of rows of training or of scores: those come late among the others."""
    last_s: dict[bool, float] = {}
    for k, seconds in enumerate(wall_s):
        if seconds < last_s.get(is_score[k], 0.0) - MOST_ADJUSTED_S:
            start = k
            while not is_score[k] and is_score[start - 1] and wall_s[start - 1] <= seconds:
                start -= 1
            yield start
            last_s.clear()
        last_s[is_score[k]] = seconds
