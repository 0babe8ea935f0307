"""Random lives of runners over one queue: they die between any two operations, or act on what they read long ago."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queue.samples import ANNA, BEN, HOSTS, record
from zmqrl.queue.records import AttemptEnd, AttemptRecord, Job, JobAttempt, JobEnd, JobRecord, Outcome, Records
from zmqrl.queue.schedule import (
    LEASE_S,
    Action,
    CloseAttempt,
    EndJob,
    Grant,
    Me,
    Preempt,
    RunnerSeen,
    StartRun,
    StopRun,
    decide,
)

USERS = (ANNA, BEN)
PICK = st.integers(0, 1 << 10)
ENDS: tuple[tuple[Outcome, int], ...] = (("done", 0), ("failed", 1), ("lost", -9))


@dataclass
class Folder:
    """The files: each operation happens whole or not at all, and one of several creations succeeds."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    attempts: dict[int, AttemptRecord] = field(default_factory=dict)
    closed: dict[int, AttemptEnd] = field(default_factory=dict)
    ends: dict[int, JobEnd] = field(default_factory=dict)
    stops: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)
    preempts: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def read(self) -> Records:
        return Records({number: self.job(number) for number in self.jobs}, max(self.attempts, default=0))

    def job(self, number: int) -> Job:
        return Job(
            number,
            self.jobs[number],
            tuple(JobAttempt(n, a, self.closed.get(n)) for n, a in sorted(self.attempts.items()) if a.job == number),
            self.ends.get(number),
            number in self.stops,
            number in self.holds,
            frozenset(self.preempts[number]),
        )


@dataclass
class Run:
    """A launcher process. It ends some time after its runner."""

    job: int
    attempt: int
    is_stopping: bool = False
    end: AttemptEnd | None = None


@dataclass
class RunnerProcess:
    me: Me
    pending: list[Action] = field(default_factory=list)
    """What was decided and is not done."""
    runs: dict[int, Run] = field(default_factory=dict)


class QueueMachine(RuleBasedStateMachine):
    """The test is folder, runners and launchers in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Folder()
        self.now = 0.0
        self.runners: dict[int, RunnerProcess] = {}
        self.superseded: list[RunnerProcess] = []
        """Frozen runners that another one has replaced: they act once more before they find out."""
        self.orphans: list[Run] = []
        self.silent_since: dict[int, float] = {}
        """When the runner of a user that has none ended."""
        self.made = 0

    @initialize(needs=st.lists(st.tuples(st.sampled_from(USERS), st.integers(1, 4)), min_size=2, max_size=6))
    def begin(self, needs: list[tuple[int, int]]) -> None:
        """Both users have a runner, and there are jobs."""
        for uid in USERS:
            self.start_runner(uid)
        for uid, cores in needs:
            self.add(uid, 0, cores, 0, None)

    @rule(
        uid=st.sampled_from(USERS),
        priority=st.sampled_from((0, 0, 1)),
        cores=st.integers(1, 4),
        gpus=st.sampled_from((0, 0, 1)),
        after=st.none() | PICK,
    )
    def add(self, uid: int, priority: int, cores: int, gpus: int, after: int | None) -> None:
        number = len(self.folder.jobs) + 1
        earlier = () if after is None or number == 1 else (1 + after % (number - 1),)
        self.folder.jobs[number] = record(uid, priority, cores, gpus, earlier)

    @precondition(lambda self: self.folder.jobs)
    @rule(pick=PICK, kind=st.sampled_from(("stop", "hold", "release")))
    def request(self, pick: int, kind: str) -> None:
        number = 1 + pick % len(self.folder.jobs)
        if kind == "stop":
            self.folder.stops.add(number)
        elif kind == "hold":
            self.folder.holds.add(number)
        else:
            self.folder.holds.discard(number)

    @rule(uid=st.sampled_from(USERS))
    def start_runner(self, uid: int) -> None:
        if uid not in self.runners:
            self.made += 1
            self.runners[uid] = RunnerProcess(Me(uid, f"runner-{self.made}"))
            self.silent_since.pop(uid, None)

    @rule(uid=st.sampled_from(USERS))
    def kill_runner(self, uid: int) -> None:
        if uid in self.runners:
            self.orphans += [run for run in self.runners.pop(uid).runs.values() if run.end is None]
            self.silent_since[uid] = self.now

    @rule(uid=st.sampled_from(USERS))
    def freeze_runner(self, uid: int) -> None:
        """As a partition: it is replaced, and carries out what it had decided later."""
        if uid in self.runners:
            self.superseded.append(self.runners[uid])
            self.kill_runner(uid)

    @precondition(lambda self: self.superseded)
    @rule()
    def thaw(self) -> None:
        frozen = self.superseded.pop()
        for action in frozen.pending:
            if not isinstance(action, StartRun):  # it looks for a successor first
                self.carry_out(frozen, action)

    @precondition(lambda self: self.orphans)
    @rule()
    def orphan_ends(self) -> None:
        self.orphans.pop()

    @rule()
    def lease_passes(self) -> None:
        """The runs of a dead runner end with it, long before."""
        self.orphans.clear()
        self.now += LEASE_S

    @rule(uid=st.sampled_from(USERS), count=st.integers(0, 6))
    def step(self, uid: int, count: int) -> None:
        """Decide, unless something is decided, and carry out that many actions."""
        runner = self.runners.get(uid)
        if runner is None:
            return
        if not runner.pending:
            runner.pending = self.decided(runner)
        for _ in range(min(count, len(runner.pending))):
            self.carry_out(runner, runner.pending.pop(0))

    @rule(order=st.lists(st.sampled_from(USERS), max_size=12))
    def race(self, order: list[int]) -> None:
        """One action of one runner each time."""
        for uid in order:
            self.step(uid, 1)

    @rule(first=st.sampled_from(USERS), cores=st.integers(2, 4))
    def overtake(self, first: int, cores: int) -> None:
        """Another user adds an urgent job and starts it before a runner carries out what it has decided."""
        (second,) = set(USERS) - {first}
        self.step(first, 0)
        self.add(second, 1, cores, 0, None)
        for uid in (second, first, second, first):
            self.step(uid, 100)

    @rule(uid=st.sampled_from(USERS))
    def start_late(self, uid: int) -> None:
        """A frozen runner starts a job that was stopped, and ended by the next runner, in the meantime."""
        self.step(uid, 0)
        if uid in self.runners:
            granted = [each.job.number for each in self.runners[uid].pending if isinstance(each, Grant)]
            self.freeze_runner(uid)
            self.folder.stops.update(granted)
            self.start_runner(uid)
            self.step(uid, 100)
            self.thaw()

    @rule(pick=PICK, end=st.sampled_from(ENDS))
    def run_ends(self, pick: int, end: tuple[Outcome, int]) -> None:
        live = [run for runner in self.runners.values() for run in runner.runs.values() if run.end is None]
        if live:
            run = live[pick % len(live)]
            outcome, code = end
            run.end = AttemptEnd("yielded" if run.is_stopping and outcome != "done" else outcome, code)

    def decided(self, runner: RunnerProcess) -> list[Action]:
        records = self.folder.read()
        seen = {u: RunnerSeen(frozenset(HOSTS), self.now) for u in self.runners}
        seen |= {u: RunnerSeen(frozenset(HOSTS), since) for u, since in self.silent_since.items()}
        observed: dict[int, AttemptEnd | None] = {n: run.end for n, run in runner.runs.items()}
        alive = {run.attempt for run in self.orphans}
        for job in records.jobs.values():
            live = job.live
            if live is None or job.record.uid != runner.me.uid or live.record.runner == runner.me.runner:
                continue
            if live.number not in alive:
                observed[live.number] = AttemptEnd("yielded")
        found = decide(records, HOSTS, runner.me, seen, observed, self.now)
        self.check_order(records, found)
        return found

    def check_order(self, records: Records, found: list[Action]) -> None:
        for grant in (each for each in found if isinstance(each, Grant)):
            for other in records.jobs.values():
                same = (other.record.uid, other.record.needs) == (grant.job.record.uid, grant.job.record.needs)
                is_before = (-other.record.priority, other.number) < (-grant.job.record.priority, grant.job.number)
                assert not (same and is_before and not other.attempts and records.is_waiting(other)), (other, grant)

    def carry_out(self, runner: RunnerProcess, action: Action) -> None:
        folder, number = self.folder, action.job.number
        if isinstance(action, Grant):
            attempt = AttemptRecord(runner.me.uid, number, action.host, action.gpus, runner.me.runner)
            folder.attempts.setdefault(action.number, attempt)
        elif isinstance(action, StartRun):
            runner.runs[action.attempt.number] = Run(number, action.attempt.number)
        elif isinstance(action, StopRun):
            if action.attempt.number in runner.runs:
                runner.runs[action.attempt.number].is_stopping = True
        elif isinstance(action, CloseAttempt):
            folder.closed.setdefault(action.attempt.number, action.end)
            runner.runs.pop(action.attempt.number, None)
        elif isinstance(action, EndJob):
            folder.ends.setdefault(number, JobEnd(action.status, action.exit_code))
        else:
            assert isinstance(action, Preempt)
            folder.preempts[number].add(action.attempt.number)

    def processes(self) -> Iterator[Run]:
        yield from self.orphans
        for runner in self.runners.values():
            yield from (run for run in runner.runs.values() if run.end is None)

    @invariant()
    def a_job_has_one_live_attempt_at_most(self) -> None:
        numbers = [run.job for run in self.processes()]
        assert len(numbers) == len(set(numbers)), numbers
        for job in self.folder.read().jobs.values():
            assert sum(each.end is None for each in job.attempts) <= 1

    @invariant()
    def nothing_runs_for_a_job_that_has_ended(self) -> None:
        assert not {run.job for run in self.processes()} & self.folder.ends.keys()

    @invariant()
    def slots_are_given_once(self) -> None:
        cores: dict[str, int] = defaultdict(int)
        gpus: list[tuple[str, int]] = []
        for run in self.processes():
            attempt = self.folder.attempts[run.attempt]
            cores[attempt.host] += self.folder.jobs[run.job].needs.cores
            gpus += [(attempt.host, index) for index in attempt.gpus]
        assert all(count <= HOSTS[host].cores for host, count in cores.items()), cores
        assert len(gpus) == len(set(gpus)), gpus

    def teardown(self) -> None:
        """Every job ends once all runners live, and then all slots are free."""
        self.superseded.clear()
        self.folder.holds.clear()
        for uid in USERS:
            self.start_runner(uid)
        for _ in range(50 + 20 * len(self.folder.jobs)):
            self.lease_passes()
            for uid in USERS:
                self.step(uid, 100)
            self.run_ends(0, ENDS[0])
        assert self.folder.ends.keys() == self.folder.jobs.keys()
        for host in HOSTS.values():
            self.add(ANNA, 0, host.cores, host.gpus, None)
            self.step(ANNA, 100)
            self.step(ANNA, 100)
        assert len(self.runners[ANNA].runs) == len(HOSTS)


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue: Any = QueueMachine.TestCase
