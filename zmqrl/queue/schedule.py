"""The scheduler: a pure function from the records of a queue to the actions of one user's runner.

Every runner computes the same order from the same records, and starts its own user's jobs alone. An attempt has the
number after the last one that its runner has read, by exclusive creation: a runner that has read outdated records
creates none. Each action is one operation on a file or a process, and is decided again until a record shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from zmqrl.queue.records import MOST_LOST, AttemptEnd, Job, JobAttempt, JobNeeds, JobStatus, Records

LEASE_S = 10.0
"""A runner that renews nothing for so long has ended: others use its slots."""


@dataclass(frozen=True)
class Capacity:
    """Slots of a host."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True)
class RunnerSeen:
    """The runner of a user, as this process has seen it."""

    hosts: frozenset[str]
    renewed_at: float
    """Time of the last change of its record, by the clock of this process."""


@dataclass(frozen=True)
class Me:
    """The user and the runner for which is decided."""

    uid: int
    runner: str


@dataclass(frozen=True)
class Grant:
    """Create the record of an attempt."""

    number: int
    job: Job
    host: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class StartRun:
    """Start the run of an attempt of this runner."""

    job: Job
    attempt: JobAttempt


@dataclass(frozen=True)
class StopRun:
    """Request the run of an attempt to end with a checkpoint. `to`: the job to which it yields."""

    job: Job
    attempt: JobAttempt
    to: Job | None = None


@dataclass(frozen=True)
class CloseAttempt:
    """Create the end of an attempt, none of whose processes is left."""

    job: Job
    attempt: JobAttempt
    end: AttemptEnd


@dataclass(frozen=True)
class EndJob:
    """Create the terminal record of a job."""

    job: Job
    status: JobStatus
    exit_code: int | None = None


@dataclass(frozen=True)
class Preempt:
    """Request an attempt of a lower priority to yield to a job."""

    job: Job
    attempt: JobAttempt


Action: TypeAlias = Union[Grant, StartRun, StopRun, CloseAttempt, EndJob, Preempt]  # noqa: UP007  # evaluated here


@dataclass
class _FreeSlots:
    """What a host has left while jobs are placed. `is_open`: no earlier job waits for it."""

    cores: int
    gpus: set[int]
    is_open: bool = True

    def fits(self, needs: JobNeeds) -> bool:
        return needs.fit(self.cores, len(self.gpus))

    def take(self, cores: int, gpus: Collection[int]) -> None:
        self.cores -= cores
        self.gpus.difference_update(gpus)


@dataclass
class _View:
    """The records with what is derived from them once."""

    records: Records
    capacity: Mapping[str, Capacity]
    hosts_of: Mapping[int, frozenset[str]]
    """Users with an active runner, and its hosts."""
    resting: Collection[int]
    free: dict[str, _FreeSlots] = field(default_factory=dict)
    cores_of: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Cores that the jobs of a user have."""
    unusable: Collection[tuple[int, str]] = ()

    def __post_init__(self) -> None:
        self.unusable = self.records.unusable()
        self.free = {name: _FreeSlots(host.cores, set(range(host.gpus))) for name, host in self.capacity.items()}
        for job, attempt in self.live():
            self.take(job, attempt.record.host, attempt.record.gpus)

    def live(self) -> Iterator[tuple[Job, JobAttempt]]:
        """Attempts that hold slots: not those of a user without an active runner, whose runs end with it."""
        for job in self.records.jobs.values():
            if job.live is not None and job.record.uid in self.hosts_of:
                yield job, job.live

    def take(self, job: Job, host: str, gpus: Collection[int]) -> None:
        self.cores_of[job.record.uid] += job.record.needs.cores
        if host in self.free:
            self.free[host].take(job.record.needs.cores, gpus)

    def hosts(self, job: Job) -> list[str]:
        """Hosts that may run a job, those with the most free cores first. A resumed run stays with its checkpoints.

        A job that could not begin on a host tries the others; later jobs of its user choose that host last.
        """
        uid = job.record.uid
        tried = {attempt.record.host for attempt in job.attempts if attempt.end and attempt.end.outcome == "lost"}
        named = {job.attempts[-1].record.host} if job.has_begun else self.hosts_of[uid]
        slots = ((name, self.capacity[name]) for name in named & self.capacity.keys())
        fitting = [name for name, host in slots if job.record.needs.fit(host.cores, host.gpus)]
        untried = [name for name in fitting if job.has_begun or name not in tried]
        return sorted(untried or fitting, key=lambda name: ((uid, name) in self.unusable, -self.free[name].cores, name))

    def in_order(self) -> Iterator[Job]:
        """Waiting jobs: the highest priority first, then the user with the fewest cores, then the first that came."""
        queues: dict[int, list[Job]] = defaultdict(list)
        for job in self.records.jobs.values():
            is_next = job.record.uid in self.hosts_of and job.number not in self.resting
            if is_next and self.records.is_waiting(job):
                queues[job.record.uid].append(job)
        for queue in queues.values():
            queue.sort(key=lambda job: (job.record.priority, -job.number))
        while queues:
            uid = min(queues, key=lambda u: (-queues[u][-1].record.priority, self.cores_of[u], queues[u][-1].number))
            yield queues[uid].pop()
            if not queues[uid]:
                del queues[uid]


def decide(
    records: Records,
    capacity: Mapping[str, Capacity],
    me: Me,
    runners: Mapping[int, RunnerSeen],
    observed: Mapping[int, AttemptEnd | None],
    now: float,
    resting: Collection[int] = (),
) -> list[Action]:
    """What the runner does next.

    Args:
        records: As the folder has them, at any time before.
        capacity: Slots of the hosts that this runner uses.
        me: This runner.
        runners: Runners of all users.
        observed: Attempts of this user whose run is known here: its end, or None while it runs.
        now: By the clock of `runners`.
        resting: Jobs of this user that are not started yet, because an attempt was lost a short time ago.
    """
    active = {uid: runner.hosts for uid, runner in runners.items() if now - runner.renewed_at < LEASE_S}
    view = _View(records, capacity, {**active, me.uid: frozenset(capacity)}, resting)
    yielding = _yielding(view)
    own = [job for job in records.jobs.values() if job.record.uid == me.uid and job.end is None]
    actions = [action for job in own for action in _of_job(records, job, me, observed, yielding)]
    return [*actions, *_placed(view, me)]


def order(records: Records) -> list[Job]:
    """Waiting jobs in the order in which they start, if each user has an active runner."""
    view = _View(records, {}, {job.record.uid: frozenset() for job in records.jobs.values()}, ())
    found = []
    for job in view.in_order():
        view.take(job, "", ())
        found.append(job)
    return found


def without_host(records: Records, capacity: Mapping[str, Capacity], uid: int) -> list[Job]:
    """Waiting jobs of a user that need more than each host has."""
    own = (job for job in records.jobs.values() if job.record.uid == uid and records.is_waiting(job))
    return [job for job in own if not any(job.record.needs.fit(host.cores, host.gpus) for host in capacity.values())]


def _of_job(
    records: Records, job: Job, me: Me, observed: Mapping[int, AttemptEnd | None], yielding: Mapping[int, Job]
) -> Iterator[Action]:
    attempt = job.live
    if attempt is not None:
        is_to_end = job.is_stopped or job.is_held or attempt.number in yielding
        end = observed.get(attempt.number)
        if end is not None:
            yield CloseAttempt(job, attempt, end)
        elif attempt.number in observed:
            yield from [StopRun(job, attempt, yielding.get(attempt.number))] if is_to_end else []
        elif attempt.record.runner == me.runner:
            unstarted = AttemptEnd("yielded", has_begun=False)
            yield CloseAttempt(job, attempt, unstarted) if is_to_end else StartRun(job, attempt)
        return
    end = job.last_end
    if end is not None and (end.outcome == "done" or end.outcome == "failed"):
        yield EndJob(job, end.outcome, end.exit_code)
    elif job.is_stopped:
        yield EndJob(job, "stopped")
    elif records.is_skipped(job):
        yield EndJob(job, "skipped")
    elif job.lost >= MOST_LOST:
        yield EndJob(job, "failed", None if end is None else end.exit_code)


def _yielding(view: _View) -> dict[int, Job]:
    """Live attempts that a waiting job of a higher priority requests to yield, each with the highest such job."""
    found: dict[int, Job] = {}
    for job in view.records.jobs.values():
        if job.preempts and job.record.uid in view.hosts_of and view.records.is_waiting(job):
            for number in job.preempts:
                found[number] = max(found.get(number, job), job, key=lambda each: each.record.priority)
    requested = ((found[each.number], job, each) for job, each in view.live() if each.number in found)
    return {attempt.number: to for to, job, attempt in requested if to.record.priority > job.record.priority}


def _placed(view: _View, me: Me) -> list[Action]:
    """The first start of a job of this user; where one finds no slots, its requests of preemption."""
    requests: list[Action] = []
    for job in view.in_order():
        if not any(free.is_open for free in view.free.values()):
            break
        is_own, needs = job.record.uid == me.uid, job.record.needs
        hosts = [name for name in view.hosts(job) if view.free[name].is_open]
        host = next((name for name in hosts if view.free[name].fits(needs)), None)
        if host is not None:
            gpus = tuple(sorted(view.free[host].gpus)[: needs.gpus])
            if is_own:
                return [*requests, Grant(view.records.last_attempt + 1, job, host, gpus)]
            view.take(job, host, gpus)
            continue
        if is_own and not requests:
            requests = [Preempt(job, attempt) for attempt in _victims(view, job, hosts)]
        for name in hosts:  # later jobs leave their slots to this one
            view.free[name].is_open = False
    return requests


def _victims(view: _View, job: Job, hosts: Collection[str]) -> list[JobAttempt]:
    """The fewest attempts of lower priorities whose slots the job needs; none while earlier requests are open."""
    live = [(other, attempt) for other, attempt in view.live() if other.record.priority < job.record.priority]
    if any(attempt.number in job.preempts for _, attempt in live):
        return []
    found: list[list[JobAttempt]] = []
    for host in hosts:
        free, chosen = _FreeSlots(view.free[host].cores, set(view.free[host].gpus)), list[JobAttempt]()
        there = [(other, attempt) for other, attempt in live if attempt.record.host == host]
        for other, attempt in sorted(there, key=lambda pair: (pair[0].record.priority, -pair[1].number)):
            if free.fits(job.record.needs):
                break
            free.take(-other.record.needs.cores, ())
            free.gpus.update(attempt.record.gpus)
            chosen.append(attempt)
        if free.fits(job.record.needs):
            found.append(chosen)
    return min(found, key=len, default=[])
