"""What the files of a queue hold, and the records of all jobs together.

The folder has `job-<n>/` (of the job's user), `attempt-<n>` (of the user whose runner starts it) and `runner-<uid>/`.
A file counts only if it belongs to the user that it names.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from zmqrl.config.sections import Bounds, Section
from zmqrl.messages.fields import PathText, Text
from zmqrl.types import Count, Name
from zmqrl.views.problem import counted

Outcome = Literal["done", "failed", "yielded", "lost"]
JobStatus = Literal["done", "failed", "stopped", "skipped"]
MOST_LOST = 10
"""Attempts in succession that ended without a result, after which a job fails."""


class JobNeeds(Section, frozen=True, forbid_unknown_fields=True):
    """What a job takes of one host, in a record and in the file of a sweep."""

    cores: Annotated[int, Bounds(ge=1, le=65_535), Meta(ge=1, le=65_535)] = 2
    gpus: Annotated[int, Bounds(ge=0, le=1023), Meta(ge=0, le=1023)] = 0

    def fit(self, cores: int, gpus: int) -> bool:
        """Whether these slots of a host are enough."""
        return self.cores <= cores and self.gpus <= gpus

    def __str__(self) -> str:
        return counted(self.cores, "core") + (f", {counted(self.gpus, 'GPU')}" if self.gpus else "")


class JobRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """`job-<n>/job`: what to train. It never changes."""

    uid: Count
    preset: PathText
    """Name of a preset, or absolute path of a file."""
    overrides: tuple[Text, ...]
    folder: PathText
    """Working directory of the run, in which its own modules are found."""
    run_dir: PathText
    priority: Annotated[int, Meta(ge=-1000, le=1000)]
    needs: JobNeeds
    after: tuple[Count, ...]


class AttemptRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """`attempt-<n>`: a job has these slots. The numbers are without gaps: its writer had read all lower ones."""

    uid: Count
    job: Count
    host: Name
    gpus: tuple[Count, ...]
    runner: Text
    """Id of the runner that starts the run."""


class AttemptEnd(Struct, frozen=True, forbid_unknown_fields=True):
    """`job-<n>/ended-<attempt>`: no process of the attempt is left. `yielded` and `lost`: the job waits again."""

    outcome: Outcome
    exit_code: int | None = None
    has_begun: bool = True
    """Whether there may be checkpoints, on the host of the attempt."""


class JobEnd(Struct, frozen=True, forbid_unknown_fields=True):
    """`job-<n>/end`: the terminal record, one per job."""

    status: JobStatus
    exit_code: int | None = None


class RunnerRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """`runner-<uid>/runner`: the hosts that the runner of a user starts jobs on."""

    uid: Count
    hosts: tuple[Name, ...]


@dataclass(frozen=True)
class JobAttempt:
    """An attempt, with its end once it has one."""

    number: int
    record: AttemptRecord
    end: AttemptEnd | None = None


@dataclass(frozen=True)
class Job:
    """A job with all that its folder holds."""

    number: int
    record: JobRecord
    attempts: tuple[JobAttempt, ...] = ()
    end: JobEnd | None = None
    is_stopped: bool = False
    is_held: bool = False
    preempts: frozenset[int] = frozenset()
    """Attempts of other jobs that are requested to yield to this one."""

    @property
    def live(self) -> JobAttempt | None:
        """The attempt without an end: there is one at most, and none counts after the end of the job."""
        is_live = self.end is None and self.attempts and self.last_end is None
        return self.attempts[-1] if is_live else None

    @property
    def last_end(self) -> AttemptEnd | None:
        """End of the last attempt; None: the job has had none, or it is live."""
        return self.attempts[-1].end if self.attempts else None

    @property
    def lost(self) -> int:
        """How many attempts in succession have ended without a result, up to the last one that has ended."""
        ends = (attempt.end for attempt in reversed(self.attempts) if attempt.end is not None)
        return sum(1 for _ in itertools.takewhile(lambda end: end.outcome == "lost", ends))

    @property
    def has_begun(self) -> bool:
        """Whether a host may have checkpoints of the job."""
        return any(attempt.end is None or attempt.end.has_begun for attempt in self.attempts)


@dataclass(frozen=True)
class Records:
    """All jobs that count, by number, and the highest number of an attempt."""

    jobs: Mapping[int, Job]
    last_attempt: int = 0

    def is_waiting(self, job: Job) -> bool:
        """Whether the job may start as soon as a host has its slots."""
        is_open = job.end is None and job.live is None and not (job.is_stopped or job.is_held or job.lost >= MOST_LOST)
        has_result = job.last_end is not None and job.last_end.outcome in ("done", "failed")
        return is_open and not has_result and all(map(self._is_done, job.record.after))

    def is_skipped(self, job: Job) -> bool:
        """Whether a job that this one is to follow has ended without success."""
        ends = [self.jobs[number].end for number in job.record.after if number in self.jobs]
        return any(end is not None and end.status != "done" for end in ends)

    def unusable(self) -> set[tuple[int, str]]:
        """Users and hosts where the last attempt of the user that has ended could not begin."""
        ended = [each for job in self.jobs.values() for each in job.attempts if each.end is not None]
        ended.sort(key=lambda each: each.number)
        last = {(each.record.uid, each.record.host): each.end for each in ended}
        return {place for place, end in last.items() if end and end.outcome == "lost" and not end.has_begun}

    def _is_done(self, number: int) -> bool:
        job = self.jobs.get(number)
        return job is not None and job.end is not None and job.end.status == "done"
