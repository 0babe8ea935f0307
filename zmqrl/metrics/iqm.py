"""Interquartile mean with stratified bootstrap intervals (Agarwal et al. 2021, section 4), as rliable computes them."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array

CONFIDENCE = 0.95
RESAMPLES = 2_000
SEED = 0


def iqm(scores: Array) -> Array:
    """The mean of the middle half of `scores [runs, tasks, ...]`, over runs and tasks together: `[...]`."""
    flat = np.sort(scores.reshape(-1, *scores.shape[2:]), axis=0)
    cut = len(flat) // 4
    mean: Array = flat[cut : len(flat) - cut].mean(axis=0)
    return mean


def resamples(runs: int, tasks: int, count: int = RESAMPLES, seed: int = SEED) -> Array:
    """Runs drawn with replacement, for each task on its own (its stratum): int64 `[count, runs, tasks]`."""
    return np.random.default_rng(seed).integers(0, runs, (count, runs, tasks))


def interval(scores: Array, indices: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Lower and upper percentile `[...]` of the IQM of resamples of `scores [runs, tasks, ...]`.

    Args:
        scores: Of each run.
        indices: From `resamples`.
        confidence: Share of the distribution inside the interval.
    """
    tasks = np.arange(scores.shape[1])
    means = np.stack([iqm(scores[drawn, tasks]) for drawn in indices])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high
