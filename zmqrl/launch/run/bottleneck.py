"""Who the others wait for, from the wait fractions and rates that learner and workers report. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from zmqrl.launch.run.host_records import ProcessRecord
from zmqrl.launch.run.state import RunState
from zmqrl.views.problem import counted

Bottleneck = Literal["workers", "learner", "bus", "store"]
BOTH_WAIT = 1.25
"""Learner and workers may wait in turns (sum 1); if both wait at once, it is what lies between them."""
STORE_HOLDS = 0.3
SLOWER = 1.5
"""The least factor that is reported."""
BUSY = 0.25
"""The largest wait fraction of a worker that the others wait for."""


@dataclass(frozen=True)
class Slowest:
    """A worker that the other workers of a sync run wait for, in each version."""

    host: str
    worker: int
    factor: float
    """Median speed of the workers of other hosts (on one host: of the other workers) by its own, while they step."""

    def __str__(self) -> str:
        return f"{self.host} (worker {self.worker}), {times(self.factor)}x slower"


def times(factor: float) -> str:
    """A factor, for people."""
    return f"{factor:.{0 if factor >= 10 else 1}f}"


def slowest(workers: Iterable[ProcessRecord]) -> Slowest | None:
    """The worker that the others of a sync run wait for, if it is clearly slower."""
    known = [worker for worker in workers if worker.env_steps_per_s > 0]
    if len(known) < 2:
        return None
    late = min(known, key=_speed)
    others = [worker for worker in known if worker.host != late.host] or [w for w in known if w is not late]
    factor = median(map(_speed, others)) / _speed(late)
    return Slowest(late.host, late.index, factor) if factor >= SLOWER and late.wait_fraction <= BUSY else None


def bottleneck(
    workers: Iterable[ProcessRecord], learner_waits: float, store_waits: float, late: Slowest | None
) -> Bottleneck:
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


def _speed(worker: ProcessRecord) -> float:
    """Env steps per second of the time in which it steps."""
    return worker.env_steps_per_s / max(1.0 - worker.wait_fraction, 0.01)


def find_bottleneck(state: RunState) -> Bottleneck | None:
    """Who the others wait for, from their wait fractions; None without measurements."""
    known = state.figures
    learner_waits = known.get("wait_fraction")
    if learner_waits is None:
        return None
    workers = [worker for worker in state.hosts.workers.values() if worker.state not in ("down", "failed", "lost")]
    return bottleneck(workers, learner_waits, known.get("store_wait_fraction", 0.0), slowest_worker(state))


def slowest_worker(state: RunState) -> Slowest | None:
    """The worker that the others of a sync run wait for; None: none is clearly slower."""
    mode = state.plan.config.mode
    return slowest(_present(state)) if mode.deterministic and not mode.in_process else None


def relieved_workers(state: RunState) -> list[str]:
    """Workers of a sync run that have fewer vector envs than others because they are slower."""
    found = [(worker, worker.relieved) for worker in _present(state) if worker.relieved is not None]
    return [
        f"{worker.host} (worker {worker.index}), {times(relieved.factor)}x slower, "
        f"has {counted(relieved.vector_envs or 'no', 'vector env')}"
        for worker, relieved in found
    ]


def _present(state: RunState) -> list[ProcessRecord]:
    return [worker for worker in state.hosts.workers.values() if worker.state in ("ready", "ended")]
