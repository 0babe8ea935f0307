"""When lost hosts are connected to again, and which."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.launch.test_host_links import Links, plan_of
from zmqrl.config.codec import replace
from zmqrl.launch.run.bottleneck import relieved_workers
from zmqrl.launch.run.events import take
from zmqrl.launch.run.problem_reports import StallDetector
from zmqrl.launch.run.rejoining import FIRST_S, LONG_S, MOST_AFTER_RETURN_S, SELDOM_S, SETTLED_S, due, settle
from zmqrl.launch.status import status_of
from zmqrl.messages.process import WorkerState
from zmqrl.orchestrators.base import HostEvent

DIED = {"pid": 1, "code": 7, "expected": False, "cause": "exit code 7", "detail": {}, "log": "", "log_tail": []}


class Run(Links):
    """Time passes by seconds; b is a host whose agent has joined."""

    def __init__(self, folder: Path, **config: object) -> None:
        super().__init__(plan_of(folder, **config))
        self.now = 100.0
        self.tell("local", "agent", public="server")
        self.listen()
        self.come("key")

    def come(self, public: str) -> None:
        self.tell("b", "agent", public=public)
        self.listen()
        self.tell("b", "joined", address="a", milliseconds=1.0, store=True)

    def lose(self) -> None:
        self.tell("b", "agent_exit", code=None, introduced=True)

    def refuse(self, cause: str = "no answer") -> None:
        self.tell("b", "host_failed", cause=cause, fix="wait")

    def attempts(self, seconds: float) -> list[float]:
        """When an agent was started; each attempt fails."""
        found, end = [], self.now + seconds
        while self.now < end:
            before = len(self.orchestrator.deployed)
            self.step(self.now)
            if len(self.orchestrator.deployed) > before:
                found.append(self.now)
                self.refuse()
            self.now += 1.0
        return found

    def problems(self, text: str) -> int:
        return sum(text in str(problem) for problem in self.state.problems)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.whole
def test_a_lost_host_is_tried_again_and_again_and_its_cause_reported_once(run: Run) -> None:
    run.lose()
    first = run.attempts(60.0)
    assert first[0] <= 102.0 and len(first) >= 10
    assert max(b - a for a, b in itertools.pairwise(first)) <= 3.0
    assert run.problems("no answer") == 1 and run.problems("the host agent exited") == 1
    run.attempts(LONG_S)
    late = run.attempts(300.0)
    assert 300 / SELDOM_S - 2 <= len(late) <= 300 / SELDOM_S + 1


def test_a_host_that_is_back_has_other_workers_and_is_reported(run: Run) -> None:
    run.lose()
    run.attempts(10.0)
    while run.state.hosts["b"].state != "connecting":
        run.step(run.now)
        run.now += 1.0
    run.come("other")
    (boot,) = run.orchestrator.deployed[-1].values()
    assert boot.workers == (3, 4), "those of before were removed"
    deployed = len(run.orchestrator.deployed)
    run.step(run.now)
    assert run.problems("back with 2 workers") == 1
    run.now += SETTLED_S
    run.step(run.now)
    assert len(run.orchestrator.deployed) == deployed
    assert run.state.hosts["b"].cause == ""


def test_a_host_that_is_lost_each_time_is_tried_less_often(run: Run) -> None:
    at = []
    for number in range(6):
        run.lose()
        while run.state.hosts["b"].state != "connecting":
            run.step(run.now)
            run.now += 0.25
        at.append(run.now)
        run.come(f"key{number}")
        run.now += 1.0
        run.step(run.now)
    waits = [b - a for a, b in itertools.pairwise(at)]
    assert waits[-1] > 2 * waits[0]


def test_any_number_of_short_returns_is_followed_by_the_same_wait(run: Run) -> None:
    """The wait doubled with each attempt: 2.0 ** 1024 is an OverflowError, which ended the run."""
    row = run.state.hosts["b"]
    waits = []
    for _ in range(1100):
        row.state, lost_at = "failed", run.now
        while not due(run.state.hosts, run.now):
            run.now += 0.5
        waits.append(run.now - lost_at)
        row.state = "ready"
        settle(run.state.hosts, run.now)
        run.now += 1.0
    assert waits[0] == FIRST_S and set(waits[5:]) == {MOST_AFTER_RETURN_S}


def test_a_returned_host_has_the_rows_of_its_present_workers_alone(run: Run) -> None:
    """One row per index ever used hid the cause of a stall, and filled `zmqrl status` and status.json."""

    def work(index: int) -> None:
        run.tell("b", "started", role="worker", index=index, pid=1, start_time=1, spawn=0)
        run.tell("b", "ready", role="worker", index=index)
        run.tell("local", "relieved", role="broker", worker=index, factor=6.0, before=2, after=0)
        take(run.state, HostEvent("local", WorkerState("worker", index, 0, "slow"), "broker", 0))

    for index in range(1, 81, 2):
        work(index)
        work(index + 1)
        run.tell("b", "exit", role="worker", index=index, **DIED)
        run.tell("b", "restart", role="worker", index=index, in_s=0.0)
        run.lose()
        run.state.hosts.assign("b", 2)
        run.come(f"key{index}")
    work(81)
    run.tell("b", "exit", role="worker", index=81, **DIED)
    run.tell("b", "restart", role="worker", index=81, in_s=0.0)
    work(82)
    status = status_of(run.state, run.now, 0.0)
    assert [row["index"] for row in status["workers"]] == [81, 82]
    (b,) = (row for row in status["hosts"] if row["host"] == "b")
    assert (b["ready"], b["restarts"], run.state.restarts) == (1, 41, 41)
    assert relieved_workers(run.state) == ["b (worker 82), 6.0x slower, has no vector envs"]
    assert [worker.judged for worker in run.state.hosts.workers.values()] == ["slow", "slow"]
    run.state.metrics["env_steps"] = 64
    stalls = StallDetector(300.0)
    assert stalls.check(run.state, 0.0) is None
    stall = stalls.check(run.state, 300.0)
    assert stall is not None and stall.action_taken.startswith(
        "b/worker-81 is down, b/worker-82 makes no progress, local/learner-0 is not ready; "
    )


@pytest.mark.parametrize("state", ["drained", "manual", "never there", "ending"])
def test_these_are_left_alone(tmp_path: Path, state: str) -> None:
    run = Run(tmp_path, **({"rejoin": "manual"} if state == "manual" else {}))
    if state == "drained":
        run.lose()
        assert "not part" in run.serve(tmp_path, '{"scale": {"b": 0}}', run.now)
    elif state == "never there":
        run.state.hosts["b"].incarnation = 0
        run.refuse()
    elif state == "ending":
        run.lose()
        run.state.hosts.ending = True
    else:
        run.lose()
    assert run.attempts(60.0) == []


def test_async_without_room_for_its_workers_omits_the_host_and_reports_it_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    plan = replace(plan, config=replace(plan.config, run=replace(plan.config.run, mode="async")), streams=3)
    run = Run.__new__(Run)
    Links.__init__(run, plan)
    run.now = 100.0
    run.tell("local", "agent", public="server")
    run.listen()
    run.come("key")
    run.lose()
    assert "local: 3" in run.serve(tmp_path, '{"scale": {"local": 3}}', run.now)
    assert run.attempts(60.0) == []
    assert run.problems("cannot be connected to again") == 1
