"""The decisions of a sweep: verdicts, and random lives in which its driver dies between any two operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queue.samples import job as sample
from zmqrl.queue.folder import HOLD, STOP
from zmqrl.queue.records import Job, JobEnd, JobStatus
from zmqrl.sweeps.sweep_file import SweepFile
from zmqrl.sweeps.trials import (
    LAST,
    Action,
    AddJob,
    AddTrial,
    EvaluateCheckpoint,
    RequestOfJob,
    Trial,
    Verdict,
    best_of,
    decide,
    has_ended,
    judge,
)

PICK = st.integers(0, 1 << 10)
RUNGS = (10, 20)
STAGES = len(RUNGS) + 1


def sweep(count: int, **keys: Any) -> SweepFile:
    return SweepFile("cartpole-ppo", {"run.x": tuple(range(count))}, **keys)


def scored(*values: float | None, end: JobStatus | None = "done", reached: int = 9) -> Trial:
    """A trial of one seed with these values, stage by stage."""
    job = sample(1, end=None if end is None else JobEnd(end))
    return Trial({}, {0: [job]}, {0: ["0-1"] * reached}, {(0, stage): value for stage, value in enumerate(values)})


def statuses(own: SweepFile, *trials: Trial) -> list[str]:
    return [verdict.status for verdict in judge(own, trials)]


def test_a_trial_below_the_median_of_earlier_ones_is_pruned_though_it_was_trained_to_its_end() -> None:
    own = sweep(4, rungs=(10,), startup_trials=2)
    verdicts = judge(own, [scored(1.0, 5.0), scored(3.0, 2.0), scored(1.9, 99.0), scored(2.0, 5.0)])
    assert verdicts == [
        Verdict("complete", 1, 5.0),
        Verdict("complete", 1, 2.0),
        Verdict("pruned", 0, 1.9),
        Verdict("complete", 1, 5.0),
    ]
    assert best_of(verdicts) == 0


def test_a_trial_waits_for_the_values_of_earlier_ones_that_may_still_come() -> None:
    own, last = sweep(2, rungs=(10,), startup_trials=1), scored(1.0, 9.0)
    assert statuses(own, scored(end=None), last) == ["running", "running"]
    assert statuses(own, scored(reached=1, end="failed"), last) == ["running", "running"]
    assert statuses(own, scored(2.0, end=None), last) == ["running", "pruned"]
    assert statuses(own, scored(2.0, reached=1, end="failed"), last) == ["failed", "pruned"]
    assert statuses(own, scored(reached=0, end="failed"), last) == ["failed", "complete"]
    assert statuses(own, scored(None), last) == ["failed", "complete"]


def test_optuna_waits_for_the_verdicts_of_the_batches_before() -> None:
    own = sweep(6, method="optuna", trials=6, batch=2)
    first, second, unknown = scored(1.0, reached=1), scored(2.0, reached=1), scored(end=None, reached=0)
    assert decide(own, [first, unknown], False) == []
    assert decide(own, [first, second], False) == [AddTrial(2)]
    assert decide(own, [first, second, unknown], False) == [AddTrial(3)]


def test_few_jobs_are_open_at_a_time() -> None:
    own = sweep(2, seeds=3, max_parallel=2)
    assert decide(own, [Trial({})], False) == [AddJob(0, 0), AddJob(0, 1)]
    one = Trial({}, {0: [sample(1)], 1: [sample(2)]})
    assert decide(own, [one], False) == []


def test_only_the_first_job_of_a_seed_and_those_of_undecided_trials_continue() -> None:
    twice = Trial({}, {0: [sample(1), sample(2)]})
    assert decide(sweep(1), [twice], False) == [RequestOfJob(2, STOP)]
    failed = Trial({}, {0: [sample(1, end=JobEnd("failed"))], 1: [sample(2), sample(3, is_stopped=True)]})
    assert decide(sweep(1, seeds=2), [failed], False) == [RequestOfJob(2, STOP)]


def test_a_stopped_sweep_holds_each_job_once() -> None:
    jobs = {0: [sample(1)], 1: [sample(2, is_held=True)], 2: [sample(3, end=JobEnd("done"))]}
    assert decide(sweep(2, seeds=3), [Trial({}, jobs)], True) == [RequestOfJob(1, HOLD)]


@dataclass
class Run:
    """A job of the queue with its run. `fails_at`: the stage that it does not reach."""

    number: int
    trial: int
    seed: int
    fails_at: int
    reached: int = 0
    end: JobEnd | None = None
    is_stopped: bool = False
    is_held: bool = False

    def job(self) -> Job:
        return sample(self.number, end=self.end, is_stopped=self.is_stopped, is_held=self.is_held)


@dataclass
class Files:
    """Each operation happens whole or not at all."""

    own: SweepFile
    values: dict[tuple[int, int, int], float]
    """By trial, seed and stage: what every evaluation finds."""
    fails_at: dict[tuple[int, int], int]
    trials: set[int] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)
    found: dict[tuple[int, int, int], float] = field(default_factory=dict)
    is_stopped: bool = False

    def read(self) -> list[Trial]:
        return [self.trial(number) for number in sorted(self.trials)]

    def trial(self, number: int) -> Trial:
        jobs: dict[int, list[Job]] = {}
        reached: dict[int, list[str]] = {}
        for run in (run for run in self.runs if run.trial == number):
            jobs.setdefault(run.seed, []).append(run.job())
            reached.setdefault(run.seed, [f"0-{stage}" for stage in range(run.reached)])
        found = {(seed, stage): value for (trial, seed, stage), value in self.found.items() if trial == number}
        return Trial({}, jobs, reached, found)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, AddTrial):
            self.trials.add(action.trial)
        elif isinstance(action, AddJob):
            key = action.trial, action.seed
            self.runs.append(Run(len(self.runs) + 1, *key, self.fails_at.get(key, STAGES)))
        elif isinstance(action, EvaluateCheckpoint):
            key = action.trial, action.seed, action.stage
            self.found.setdefault(key, self.values[key])
        elif action.name == STOP:
            self.runs[action.job - 1].is_stopped = True
        else:
            self.runs[action.job - 1].is_held = self.is_stopped

    def advance(self, run: Run) -> None:
        """The run reaches its next stage, or ends; what the runner of the queue does too."""
        if run.end is not None:
            return
        if run.is_stopped:
            run.end = JobEnd("stopped")
        elif not run.is_held and run.reached == run.fails_at:
            run.end = JobEnd("failed", 1)
        elif not run.is_held:
            run.reached += 1
            run.end = JobEnd("done", 0) if run.reached == STAGES else None


def expected(files: Files) -> list[Verdict]:
    """Verdicts by the definition, trial by trial, as if each had been trained alone."""
    seeds = range(files.own.seeds)
    found, at = list[Verdict](), [list[float](), list[float]()]
    for trial in range(files.own.count):
        value, verdict = None, None
        fails_at = min(files.fails_at.get((trial, seed), STAGES) for seed in seeds)
        for stage in range(STAGES):
            if stage == fails_at:
                verdict = Verdict("failed", stage, value)
                break
            value = sum(files.values[trial, seed, stage] for seed in seeds) / len(seeds)
            if stage == len(RUNGS):
                verdict = Verdict("complete", stage, value)
                break
            is_low = len(at[stage]) >= files.own.startup_trials and value < median(at[stage])
            at[stage].append(value)
            if is_low:
                verdict = Verdict("pruned", stage, value)
                break
        assert verdict is not None
        found.append(verdict)
    return found


class SweepMachine(RuleBasedStateMachine):
    """The test is driver, runner and runs in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Action] = []
        self.stale: list[Action] = []
        """What a frozen driver had decided: it carries out one action more."""
        self.final: dict[int, Verdict] = {}

    @initialize(
        count=st.integers(2, 6),
        seeds=st.integers(1, 2),
        most=st.integers(1, 5),
        values=st.lists(st.integers(-4, 4).map(float), min_size=36, max_size=36),
        failing=st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 1)), st.integers(0, 2), max_size=2),
    )
    def begin(
        self, count: int, seeds: int, most: int, values: list[float], failing: dict[tuple[int, int], int]
    ) -> None:
        own = sweep(count, seeds=seeds, rungs=RUNGS, startup_trials=1, max_parallel=most)
        keys = [(t, s, k) for t in range(6) for s in range(2) for k in range(STAGES)]
        of_seeds = {key: stage for key, stage in failing.items() if key[1] < seeds}
        self.files = Files(own, dict(zip(keys, values, strict=True)), of_seeds)

    @rule(count=st.integers(0, 5))
    def step(self, count: int) -> None:
        if not self.pending:
            self.pending = decide(self.files.own, self.files.read(), self.files.is_stopped)
        for _ in range(min(count, len(self.pending))):
            self.files.carry_out(self.pending.pop(0))

    @rule()
    def kill_driver(self) -> None:
        self.pending = []

    @rule()
    def freeze_driver(self) -> None:
        self.stale, self.pending = self.pending[:1], []

    @precondition(lambda self: self.stale)
    @rule()
    def thaw_driver(self) -> None:
        self.files.carry_out(self.stale.pop())

    @rule(picks=st.lists(PICK, max_size=6))
    def runs_advance(self, picks: list[int]) -> None:
        for pick in picks if self.files.runs else ():
            self.files.advance(self.files.runs[pick % len(self.files.runs)])

    @rule()
    def stop_or_resume(self) -> None:
        self.files.is_stopped = not self.files.is_stopped
        for run in self.files.runs:
            run.is_held &= self.files.is_stopped

    @invariant()
    def a_verdict_is_final(self) -> None:
        for number, verdict in enumerate(judge(self.files.own, self.files.read())):
            assert verdict == self.final.get(number, verdict)
            if verdict.status != "running":
                self.final[number] = verdict

    def teardown(self) -> None:
        """The same verdicts as without disturbances, and each seed is trained once."""
        if not hasattr(self, "files"):
            return
        files, self.pending, self.stale = self.files, [], []
        if files.is_stopped:
            self.stop_or_resume()
        for _ in range(1_000):
            self.step(100)
            for run in files.runs:
                files.advance(run)
            if has_ended(files.own, files.read()):
                break
        assert has_ended(files.own, files.read())
        verdicts = judge(files.own, files.read())
        assert verdicts == expected(files)
        assert best_of(verdicts) == best_of(expected(files))


SweepMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSweep: Any = SweepMachine.TestCase


def test_the_last_checkpoint_has_the_name_that_eval_takes() -> None:
    from zmqrl.planning import policies

    assert policies.LAST == LAST
