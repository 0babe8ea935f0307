"""Records of a queue without its folder."""

from __future__ import annotations

from typing import Any

from zmqrl.queue.records import AttemptEnd, AttemptRecord, Job, JobAttempt, JobNeeds, JobRecord, Records
from zmqrl.queue.schedule import Capacity, Me, RunnerSeen

ANNA, BEN, CLEO = 1001, 1002, 1003
HOSTS = {"a": Capacity(4, 2), "b": Capacity(2)}
RUNNER = "runner-of-anna"
ME = Me(ANNA, RUNNER)
ACTIVE = {uid: RunnerSeen(frozenset(HOSTS), 0.0) for uid in (ANNA, BEN, CLEO)}


def record(uid: int = ANNA, priority: int = 0, cores: int = 2, gpus: int = 0, after: tuple[int, ...] = ()) -> JobRecord:
    return JobRecord(uid, "cartpole-ppo", (), "/", "/runs/x", priority, JobNeeds(cores, gpus), after)


def job(number: int, uid: int = ANNA, *attempts: JobAttempt, **fields: Any) -> Job:
    of_record = {name: fields.pop(name) for name in ("priority", "cores", "gpus", "after") if name in fields}
    return Job(number, record(uid, **of_record), attempts, **fields)


def attempt(number: int, of: int, uid: int = ANNA, host: str = "a", **fields: Any) -> JobAttempt:
    end: AttemptEnd | None = fields.pop("end", None)
    return JobAttempt(number, AttemptRecord(uid, of, host, fields.pop("gpus", ()), fields.pop("runner", RUNNER)), end)


def records(*jobs: Job) -> Records:
    last = max((a.number for each in jobs for a in each.attempts), default=0)
    return Records({each.number: each for each in jobs}, last)
