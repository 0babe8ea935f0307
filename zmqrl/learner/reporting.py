"""What the learner reports of its run: metrics while it lasts, and at its end what the summary needs."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.algorithms.base import Algorithm, BaseLearner, schedule_of
from zmqrl.config.plan import RunPlan
from zmqrl.learner.checkpointing import FullCheckpoints
from zmqrl.learner.counters import RunProgress
from zmqrl.learner.publishing import Publisher
from zmqrl.learning.schedule import value_at
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import LearnerEnded, Metrics
from zmqrl.types import LARGEST_FINITE, LONGEST_NAME, WHOLE_LIMIT, Ledger, Weights

METRICS_EVERY_S = 1.0
RECENT_S = 5.0
"""Window of the rates in the metrics."""
RATE_AFTER_FRACTION = 0.25
"""Rates of the summary leave out the first quarter of the env steps: start and warm-up."""
SAMPLE_EVERY_S = 0.1
MOST_SAMPLES, RECENT_SAMPLES = 2000, 500
UNKNOWN = {"env_steps_per_s": 0.0, "updates_per_s": 0.0, "wait_fraction": None, "store_wait_fraction": None}
"""Rates before the second sample."""


class Reporter:
    """Sends the events of the learner's progress. The learner's main thread only."""

    def __init__(
        self,
        plan: RunPlan,
        algorithm: Algorithm,
        events: EventPipe,
        progress: RunProgress,
        publisher: Publisher,
        checkpoints: FullCheckpoints,
    ) -> None:
        self._algorithm, self._events, self._progress = algorithm, events, progress
        self._schedule = plan.config.env.schedule
        self._publisher, self._checkpoints = publisher, checkpoints
        self._learning_starts = None if plan.on_policy else plan.config.replay.learning_starts
        self.loaded_env_steps: int | None = None
        """Env steps of a data set: they are in no other count."""
        self._rates = Rates()
        self._waited_s = 0.0
        self._metrics: dict[str, float] = {}
        self._sent_at_s, self._sent_env_steps = time.monotonic(), progress.counters.env_steps
        self._sent_updates = progress.counters.updates

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts, the learner waits for experience; in single mode it collects it."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._waited_s += time.monotonic() - begun

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Metrics of the newest updates; they are sent with the next event."""
        if metrics:
            self._metrics = dict(metrics)

    def version_advanced(self) -> None:
        """A version boundary was passed: sample the rates, and send metrics when they are due."""
        c, saved_s = self._progress.counters, self._publisher.spent_s + self._checkpoints.spent_s
        self._rates.observe(time.monotonic(), c.env_steps, c.updates, self._waited_s, saved_s)
        self.send_when_due()

    def send_when_due(self) -> None:
        """Report progress to the launcher, at most once in `METRICS_EVERY_S`: cheap to call."""
        now = time.monotonic()
        if now - self._sent_at_s >= METRICS_EVERY_S:
            self._send_metrics(now)

    def ended(self, reason: str, learner: BaseLearner, ledger: Ledger | None) -> None:
        """Report what the summary needs, after a last row of metrics where the last one is older.

        `ledger` is given in single mode, where the stream records are in this process.
        """
        progress, c = self._progress, self._progress.counters
        if (c.env_steps, c.updates) != (self._sent_env_steps, self._sent_updates):
            self._send_metrics(time.monotonic())
        report = LearnerEnded(
            reason=reason,
            env_steps=c.env_steps,
            env_steps_before=c.env_steps_before,
            updates=c.updates,
            updates_lost=c.updates_lost,
            episodes=progress.episodes.total,
            train_return_mean_100=progress.episodes.mean_return,
            solved_at_env_steps=c.solved_at_env_steps,
            solved_at_wall_s=c.solved_at_wall_s,
            policy_lag=progress.lags.summary(),
            replay_ratio=self._replay_ratio(),
            weights_sha256=weights_sha256(learner.weights(), learner.network_names()),
            checkpoint_interval_s=self._checkpoints.interval_s,
            notice=self._publisher.notice,
            ledger=ledger,
            **self._rates.summary(),
        )
        self._events.send(report)

    def _send_metrics(self, now: float) -> None:
        progress, c = self._progress, self._progress.counters
        lag, since_s = progress.lags.summary(), now - self._sent_at_s
        warm_up = {"env_steps_per_s": (c.env_steps - self._sent_env_steps) / max(since_s, 1e-3)}
        self._sent_at_s, self._sent_env_steps, self._sent_updates = now, c.env_steps, c.updates
        values: dict[str, Any] = {
            **{name: value_at(number, progress.snapshot) for name, number in self._schedule.items()},
            "env_steps": c.env_steps,
            "updates": c.updates,
            "version": c.n,
            "episodes": progress.episodes.total,
            "policy_lag_mean": lag["mean"],
            "policy_lag_max": lag["max"],
            "checkpoint_interval_s": self._checkpoints.interval_s,
            **(self._rates.since(RECENT_S) or warm_up),
            **self._metrics,
            **schedule_of(self._algorithm, progress.snapshot),
        }
        if self.loaded_env_steps is not None:
            values["loaded_env_steps"] = self.loaded_env_steps
        if self._learning_starts is not None:
            values["replay_ratio"] = self._replay_ratio()
        if progress.episodes.mean_return is not None:
            values["train_return_mean_100"] = progress.episodes.mean_return
        if progress.episodes.mean_length is not None:
            values["train_length_mean_100"] = progress.episodes.mean_length
        if progress.episodes.reports is not None:
            values |= {f"report/{name}": mean for name, mean in progress.episodes.reports.means()}
        self._events.send(Metrics(figures_of(values)))

    def _replay_ratio(self) -> float:
        trained_steps = self._progress.counters.env_steps - (self._learning_starts or 0)
        return self._progress.counters.updates / trained_steps if trained_steps > 0 else 0.0


@dataclass(frozen=True)
class _RateSample:
    at_s: float
    env_steps: int
    updates: int
    waited_s: float
    saved_s: float


@dataclass
class Rates:
    """Speed of a run from samples taken at version boundaries."""

    samples: list[_RateSample] = field(default_factory=list)

    def observe(self, at_s: float, env_steps: int, updates: int, waited_s: float, saved_s: float) -> None:
        """Take a sample, at most one every `SAMPLE_EVERY_S`; the newest always counts.

        `waited_s`, `saved_s`: time spent so far waiting for segments, and in the store.
        """
        sample = _RateSample(at_s, env_steps, updates, waited_s, saved_s)
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

    def summary(self) -> dict[str, Any]:
        """Rates after the first quarter of the env steps."""
        if len(self.samples) < 2:
            return UNKNOWN
        begun = self.samples[0].env_steps
        mark = begun + RATE_AFTER_FRACTION * (self.samples[-1].env_steps - begun)
        first = next(i for i, s in enumerate(self.samples) if s.env_steps >= mark)
        return self._between(min(first, len(self.samples) - 2), len(self.samples) - 1)

    def _between(self, first: int, last: int) -> dict[str, float]:
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
