"""What a run counts and how its summary is made of it. Plain state: no clock of its own, no I/O."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.types import LARGEST_FINITE, LONGEST_NAME, WHOLE_LIMIT, Array, Weights

RATE_AFTER_FRACTION = 0.25
"""Rates of the summary leave out the first quarter of the env steps: start and warm-up."""
SAMPLE_EVERY_S = 0.1
MOST_SAMPLES, RECENT_SAMPLES = 2000, 500


@dataclass
class Counters:
    """Progress of the run; the part of FULL that is plain numbers."""

    incarnation: int = 0
    n: int = 0
    env_steps: int = 0
    env_steps_before: int = 0
    """Those of earlier arenas: together with what this one has stored they are the run's."""
    updates: int = 0
    updates_forgiven: int = 0
    """Due when this learner began, and offset; of an async off-policy run."""
    schedule_env_steps: int = 1
    solved_at_env_steps: int | None = None
    solved_at_wall_s: float | None = None
    updates_lost: int = 0
    """Done after a FULL by learners that died before the next one."""
    leg: float = 0.0
    """When the command was started in whose arena `rows` and `positions` are."""
    rows: list[int] = field(default_factory=list)
    """Of each vector env, stored in this arena and used."""
    positions: Sequence[Sequence[int]] = ()
    """(incarnation, index) of the next segment of each vector env that was not used."""


@dataclass
class LagHistogram:
    """Policy lag, in versions, of every segment that was used."""

    counts: Counter[int] = field(default_factory=Counter)

    def observe(self, lags: Iterable[int]) -> None:
        """Count one use per segment."""
        self.counts.update(lags)

    def summary(self) -> dict[str, float]:
        """mean, p50, p99 and max over all uses; zeros before the first."""
        if not self.counts:
            return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
        lags = np.array(sorted(self.counts))
        uses = np.array([self.counts[lag] for lag in lags])
        below = np.cumsum(uses) / uses.sum()
        return {
            "mean": float((lags * uses).sum() / uses.sum()),
            "p50": int(lags[np.searchsorted(below, 0.50)]),
            "p99": int(lags[np.searchsorted(below, 0.99)]),
            "max": int(lags[-1]),
        }


@dataclass(frozen=True)
class _Sample:
    at_s: float
    env_steps: int
    updates: int
    waited_s: float
    saved_s: float


@dataclass
class Rates:
    """Speed of a run from samples taken at version boundaries."""

    samples: list[_Sample] = field(default_factory=list)

    def observe(self, at_s: float, env_steps: int, updates: int, waited_s: float, saved_s: float) -> None:
        """Take a sample, at most one every `SAMPLE_EVERY_S`; the newest always counts.

        `waited_s`, `saved_s`: time spent so far waiting for segments, and in the store.
        """
        sample = _Sample(at_s, env_steps, updates, waited_s, saved_s)
        if len(self.samples) > 1 and at_s - self.samples[-2].at_s < SAMPLE_EVERY_S:
            self.samples[-1] = sample
        else:
            self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:  # of what is long ago every second one will do
            self.samples[:-RECENT_SAMPLES] = self.samples[:-RECENT_SAMPLES:2]

    def since(self, window_s: float) -> dict[str, float]:
        """Rates over the newest `window_s`; none before the second sample."""
        if len(self.samples) < 2:
            return {}
        start = self.samples[-1].at_s - window_s
        first = next(i for i, s in enumerate(self.samples) if s.at_s >= start or i == len(self.samples) - 1)
        return self._between(max(0, first - 1), len(self.samples) - 1)

    def summary(self) -> dict[str, float]:
        """Rates after the first quarter of the env steps."""
        if not self.samples:
            return self._between(0, 0)
        begun = self.samples[0].env_steps
        mark = begun + RATE_AFTER_FRACTION * (self.samples[-1].env_steps - begun)
        first = next(i for i, s in enumerate(self.samples) if s.env_steps >= mark)
        return self._between(min(first, max(0, len(self.samples) - 2)), len(self.samples) - 1)

    def _between(self, first: int, last: int) -> dict[str, float]:
        if first >= last:
            return dict.fromkeys(("env_steps_per_s", "updates_per_s", "wait_fraction", "store_wait_fraction"), 0.0)
        a, b = self.samples[first], self.samples[last]
        elapsed_s = max(b.at_s - a.at_s, 1e-9)
        return {
            "env_steps_per_s": (b.env_steps - a.env_steps) / elapsed_s,
            "updates_per_s": (b.updates - a.updates) / elapsed_s,
            "wait_fraction": min(1.0, (b.waited_s - a.waited_s) / elapsed_s),
            "store_wait_fraction": min(1.0, (b.saved_s - a.saved_s) / elapsed_s),
        }


def weights_sha256(weights: Weights, names: Iterable[str]) -> str:
    """Digest over (name, dtype, shape, bytes) of the named arrays in sorted order."""
    digest = hashlib.sha256()
    for name in sorted(names):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def prefixed(prefix: str, arrays: Weights) -> dict[str, Array]:
    """Names under `prefix/`, as FULL holds them."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays under `prefix/`, by their own names."""
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}


def figures_of(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Values as a metrics event carries them: a receiver refuses the whole event for one value out of its bounds.

    Numbers of numpy and torch become plain ones, integers from 2^62 on floats; what is not finite is left out.
    """
    numbers = {str(name)[:LONGEST_NAME]: _number(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if abs(number) <= LARGEST_FINITE}


def _number(value: Any) -> int | float:
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, int) and abs(plain) < WHOLE_LIMIT:
        return int(plain)
    try:
        return float(plain)
    except OverflowError:
        return math.inf
