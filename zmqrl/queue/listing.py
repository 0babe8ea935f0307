"""Jobs as `zmqrl queue list`, `zmqrl runs` and the page of `zmqrl view` show them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from zmqrl.config.codec import replace
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.records import Job, Records
from zmqrl.queue.schedule import order
from zmqrl.run_files.run_list import NO_RUN, RunRow
from zmqrl.supervision import owner_record
from zmqrl.supervision.host_entry import user_name


class JobRow(msgspec.Struct, frozen=True):
    """A job as the list has it."""

    job: int
    user: str
    state: str
    position: int | None
    """Place among the waiting jobs, from 1; None: it does not wait for slots."""
    priority: int
    needs: str
    host: str | None
    preset: str
    run: str


def job_rows(records: Records) -> list[JobRow]:
    """All jobs, by number."""
    positions = {job.number: position for position, job in enumerate(order(records), 1)}
    return [_row(records, job, positions.get(job.number)) for job in records.jobs.values()]


def with_jobs(rows: Iterable[RunRow], jobs: Iterable[JobRow], folders: Iterable[Path]) -> Iterator[RunRow]:
    """Rows of runs with their jobs, after those of the jobs in and below `folders` that have no run yet."""
    runs = {os.path.abspath(row.run_dir): row for row in rows}
    places = [(folder, os.path.abspath(folder)) for folder in folders]
    for job in jobs:
        number, position = job.job, job.position
        if job.run in runs:
            runs[job.run] = replace(runs[job.run], job=number, position=position)
        elif job.state == "waiting":
            found = (f / Path(job.run).relative_to(place) for f, place in places if Path(job.run).is_relative_to(place))
            for run_dir in itertools.islice(found, 1):
                row = replace(NO_RUN, run_dir=str(run_dir), state=job.state, user=job.user)
                yield replace(row, job=number, position=position)
    yield from runs.values()


def own_jobs(records: Records) -> list[Job]:
    """Jobs of this user that have not ended."""
    return [job for job in records.jobs.values() if job.end is None and job.record.uid == os.geteuid()]


def lacks_runner(queue: QueueFolder, records: Records) -> bool:
    """Whether this user has a job that is not held and, as far as it is known here, no active runner."""
    is_owned = owner_record.is_owned(queue.runner_folder(os.geteuid()))
    return not is_owned and not all(job.is_held for job in own_jobs(records))


def _row(records: Records, job: Job, position: int | None) -> JobRow:
    record, slots = job.record, str(job.record.needs)
    host = job.attempts[-1].record.host if job.attempts else None
    state = _state(records, job)
    return JobRow(
        job.number, user_name(record.uid), state, position, record.priority, slots, host, record.preset, record.run_dir
    )


def _state(records: Records, job: Job) -> str:
    if job.end is not None:
        return job.end.status
    if job.is_stopped:
        return "stopping"
    if job.live is not None:
        return "running"
    if job.is_held:
        return "held"
    if not records.is_waiting(job) and job.record.after:
        return f"after {','.join(map(str, job.record.after))}"
    return "waiting"
