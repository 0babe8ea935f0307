"""Who the others wait for, from the wait fractions and rates that learner and workers report. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal, Protocol

Bottleneck = Literal["workers", "learner", "bus", "store"]
BOTH_WAIT = 1.25
"""Learner and workers may wait in turns (sum 1); if both wait at once, it is what lies between them."""
STORE_HOLDS = 0.3
SLOWER = 1.5
"""The least factor that is reported."""
BUSY = 0.25
"""The largest wait fraction of a worker that the others wait for."""


class Rates(Protocol):
    """Of one rollout worker, as it reports them."""

    host: str
    index: int
    env_steps: int
    env_steps_per_s: float
    wait_fraction: float


@dataclass(frozen=True)
class Slowest:
    """A worker that the other workers of a sync run wait for, in each version."""

    host: str
    worker: int
    factor: float
    """Median speed of the workers of other hosts (on one host: of the other workers) by its own, while they step."""

    def __str__(self) -> str:
        return f"{self.host} (worker {self.worker}), {times(self.factor)}x slower"


@dataclass(frozen=True)
class Relieved:
    """A worker of a sync run that has fewer vector envs than the others: the broker has moved them by speed."""

    host: str
    worker: int
    factor: float
    """Its time for a segment by the median of the others, when they were moved."""
    vector_envs: int

    def __str__(self) -> str:
        held = f"{self.vector_envs or 'no'} vector env{'s' * (self.vector_envs != 1)}"
        return f"{self.host} (worker {self.worker}), {times(self.factor)}x slower, has {held}"


def times(factor: float) -> str:
    """A factor, for people."""
    return f"{factor:.{0 if factor >= 10 else 1}f}"


def slowest(workers: Iterable[Rates]) -> Slowest | None:
    """The worker that the others of a sync run wait for, if it is clearly slower."""
    known = [worker for worker in workers if worker.env_steps_per_s > 0]
    if len(known) < 2:
        return None
    late = min(known, key=_speed)
    others = [worker for worker in known if worker.host != late.host] or [w for w in known if w is not late]
    factor = median(map(_speed, others)) / _speed(late)
    return Slowest(late.host, late.index, factor) if factor >= SLOWER and late.wait_fraction <= BUSY else None


def bottleneck(workers: Iterable[Rates], learner_waits: float, store_waits: float, late: Slowest | None) -> Bottleneck:
    """`learner_waits`, `store_waits`: fractions of the learner's time. `late`: of `slowest`."""
    waits = [worker.wait_fraction for worker in workers if worker.env_steps]
    workers_wait = sum(waits) / len(waits) if waits else 1.0 - learner_waits
    if store_waits > STORE_HOLDS:
        return "store"
    if late is not None:
        return "workers"
    if learner_waits + workers_wait > BOTH_WAIT:
        return "bus"
    return "workers" if learner_waits >= workers_wait else "learner"


def _speed(worker: Rates) -> float:
    """Env steps per second of the time in which it steps."""
    return worker.env_steps_per_s / max(1.0 - worker.wait_fraction, 0.01)
