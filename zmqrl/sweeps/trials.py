"""A sweep decided from its records: what each trial has come to, and what the driver does next. Pure.

The verdict on a trial depends on its own values and on those of earlier trials alone, never on when they were found: a
trial that was trained to its end before it could be compared is pruned all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal, NamedTuple, TypeAlias, Union

from zmqrl.queue.folder import HOLD, STOP
from zmqrl.queue.records import Job
from zmqrl.sweeps.sweep_file import SweepFile

TrialStatus = Literal["running", "complete", "pruned", "failed"]
LAST = "last"
"""Checkpoint of a run that has ended."""


@dataclass(frozen=True)
class Trial:
    """A trial with all that is known of it. Seeds are numbered from 0; the stages are the rungs and the end."""

    parameters: Mapping[str, Any]
    jobs: Mapping[int, Sequence[Job]] = field(default_factory=dict)
    """Jobs by seed. The first one counts; a driver that was frozen may have added another."""
    reached: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Checkpoints by seed, one for each stage that the run has reached."""
    values: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    """Values by seed and stage. None: the evaluation failed."""

    def has_failed(self, stage: int) -> bool:
        """Whether a run ended without a result before the stage, or its evaluation there failed."""
        for seed, (first, *_) in self.jobs.items():
            is_done = first.end is None or first.end.status == "done"
            is_missed = not is_done and len(self.reached.get(seed, ())) <= stage
            if self.values.get((seed, stage), None if is_missed else 0.0) is None:
                return True
        return False

    def reason(self) -> str:
        """Why the trial has failed. Its other jobs are stopped then: a job that was stopped is named last."""
        if None in self.values.values():
            return "an evaluation failed"
        ends = [(job.end.status, job.number) for job, *_ in self.jobs.values() if job.end is not None]
        status, number = min(end for end in ends if end[0] != "done")  # failed, skipped, stopped
        return f"job {number} {'' if status == 'failed' else 'was '}{status}"


class Verdict(NamedTuple):
    """What a trial has come to: how many stages it has passed, and its value at the last one that has a value."""

    status: TrialStatus
    stage: int
    value: float | None = None


class AddTrial(NamedTuple):
    """Create the record of a trial."""

    trial: int


class AddJob(NamedTuple):
    """Add the job of a seed to the queue."""

    trial: int
    seed: int


class EvaluateCheckpoint(NamedTuple):
    """Create the record of a value."""

    trial: int
    seed: int
    stage: int
    checkpoint: str


class RequestOfJob(NamedTuple):
    """Request the end of a job whose result is not used (`STOP`), or its pause until the sweep is resumed (`HOLD`)."""

    job: int
    name: str


Action: TypeAlias = Union[AddTrial, AddJob, EvaluateCheckpoint, RequestOfJob]  # noqa: UP007  # evaluated here


def judge(keys: SweepFile, trials: Sequence[Trial]) -> list[Verdict]:
    """The verdict on each trial, in order."""
    rungs, found = range(len(keys.rungs)), list[Verdict]()
    earlier: list[list[float]] = [[] for _ in rungs]
    """Values of the trials before that were compared at the rung."""
    is_known = [True for _ in rungs]
    for trial in trials:
        verdict = _verdict(keys, trial, earlier, is_known)
        for rung in rungs:
            if rung < verdict.stage or (rung == verdict.stage and verdict.status == "pruned"):
                earlier[rung].append(fmean(_values(keys, trial, rung)))
            elif verdict.status == "running":
                is_known[rung] = False
        found.append(verdict)
    return found


def best_of(verdicts: Sequence[Verdict]) -> int | None:
    """The number of the complete trial with the highest value, the first of several; None: none is complete."""
    complete = [number for number, verdict in enumerate(verdicts) if verdict.status == "complete"]
    return max(complete, key=lambda number: verdicts[number].value or 0.0, default=None)


def has_ended(keys: SweepFile, trials: Sequence[Trial]) -> bool:
    """Whether every trial has a verdict, and no job is left."""
    is_decided = len(trials) == keys.count and all(v.status != "running" for v in judge(keys, trials))
    return is_decided and not any(map(_open_jobs, trials))


def decide(keys: SweepFile, trials: Sequence[Trial], is_stopped: bool) -> list[Action]:
    """What the driver does next. Each action is one operation, and is decided again until a record shows it."""
    if is_stopped:
        return [*holds(trials)]
    verdicts = judge(keys, trials)
    found = [a for number, trial in enumerate(trials) for a in _of_trial(keys, number, trial, verdicts[number])]
    room = keys.max_parallel - sum(len(_open_jobs(trial)) for trial in trials)
    missing = [
        AddJob(number, seed)
        for number, trial in enumerate(trials)
        for seed in range(keys.seeds)
        if verdicts[number].status == "running" and seed not in trial.jobs
    ]
    found += missing[: max(0, room)]
    if len(missing) < room and len(trials) < keys.count and _may_add(keys, verdicts):
        found.append(AddTrial(len(trials)))
    return found


def holds(trials: Sequence[Trial]) -> list[RequestOfJob]:
    """What remains to be done when a sweep was stopped."""
    jobs = (job for trial in trials for job in _open_jobs(trial))
    return [RequestOfJob(job.number, HOLD) for job in jobs if not (job.is_held or job.is_stopped)]


def _verdict(keys: SweepFile, trial: Trial, earlier: Sequence[Sequence[float]], is_known: Sequence[bool]) -> Verdict:
    value = None
    for stage in range(len(earlier) + 1):
        values = _values(keys, trial, stage)
        if len(values) < keys.seeds:
            return Verdict("failed" if trial.has_failed(stage) else "running", stage, value)
        value = fmean(values)
        if stage == len(earlier):
            return Verdict("complete", stage, value)
        if not is_known[stage]:
            return Verdict("running", stage, value)
        if len(earlier[stage]) >= keys.startup_trials and value < median(earlier[stage]):
            return Verdict("pruned", stage, value)
    raise AssertionError("no stage")


def _values(keys: SweepFile, trial: Trial, stage: int) -> list[float]:
    found = (trial.values.get((seed, stage)) for seed in range(keys.seeds))
    return [value for value in found if value is not None]


def _of_trial(keys: SweepFile, number: int, trial: Trial, verdict: Verdict) -> Iterator[Action]:
    is_over = verdict.status in ("pruned", "failed")
    for seed, jobs in trial.jobs.items():
        superfluous = jobs if is_over else jobs[1:]
        yield from (RequestOfJob(job.number, STOP) for job in superfluous if job.end is None and not job.is_stopped)
        for stage, checkpoint in enumerate(() if is_over else trial.reached.get(seed, ())):
            if (seed, stage) not in trial.values:
                yield EvaluateCheckpoint(number, seed, stage, checkpoint)


def _open_jobs(trial: Trial) -> list[Job]:
    return [job for jobs in trial.jobs.values() for job in jobs if job.end is None]


def _may_add(keys: SweepFile, verdicts: Sequence[Verdict]) -> bool:
    """Whether the next trial is known: optuna proposes it from those of earlier batches."""
    before = len(verdicts) - len(verdicts) % keys.batch if keys.method == "optuna" else 0
    return all(verdict.status != "running" for verdict in verdicts[:before])
