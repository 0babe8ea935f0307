"""`env.recovery: restart_episode`: a move ends episodes, so nothing moves from a worker that stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import Handover
from zmqrl.broker.state import BrokerState
from zmqrl.config.codec import replace
from zmqrl.config.sections import LimitsSection
from zmqrl.shared_memory.arena import Arena

START_S = 10.0


class Restarting:
    """A broker whose plan has workers 0 and 1 on `local`, and 2 and 3 on `far`."""

    def __init__(
        self, hosts: Mapping[str, int] | None = None, recovery: Literal["exact", "restart_episode"] = "restart_episode"
    ) -> None:
        plan = bus_plan("sync", 4, 4, slots=32)
        env, limits = replace(plan.config.env, recovery=recovery), LimitsSection(start_s=START_S)
        config = replace(plan.config, env=env, limits=limits)
        self.plan = replace(plan, config=config, workers=hosts or {"local": 2, "far": 2})
        self.arena = Arena.private(self.plan)
        self.broker = BrokerState(self.plan, self.arena)

    def report_worker(self, index: int, at: float = 0.0) -> None:
        process = self.broker.workers.process(index)
        streams = {} if process is None else {v: a.incarnation for v, a in process.assigned.items()}
        serial = -1 if process is None else process.serial
        remote = index > 1
        self.broker.handle(ev.WorkerReported(index, 0, (), streams, serial=serial, remote=remote, at=at))

    def report_host(self, host: str, *workers: int) -> None:
        self.broker.handle(ev.HostReported(dict.fromkeys(workers, 0), (), host, workers))

    def holders(self) -> dict[int, int]:
        return dict(sorted(self.broker.assignment.holders.items()))

    def incarnations(self) -> list[int]:
        return [self.arena.streams.read(v).incarnation for v in range(4)]


def test_a_worker_that_is_ready_before_its_agent_reports_does_not_get_all() -> None:
    run = Restarting({"local": 2})
    run.report_worker(0)
    assert run.holders() == {}
    run.report_host("local", 0, 1)
    assert run.holders() == {0: 0, 2: 0}, "the others are for worker 1, which is not ready yet"
    run.report_worker(1)
    run.report_worker(0)
    assert run.holders() == {0: 0, 1: 1, 2: 0, 3: 1}
    assert run.incarnations() == [0, 0, 0, 0]


def test_the_first_assignment_waits_for_each_host_of_the_plan() -> None:
    run = Restarting()
    run.report_host("local", 0, 1)
    run.report_worker(0)
    run.report_worker(1, START_S - 1.0)
    assert run.holders() == {}
    run.report_host("far", 2, 3)
    run.report_worker(3, START_S - 1.0)
    run.report_worker(2, START_S - 1.0)
    assert run.holders() == {0: 0, 1: 1, 2: 2, 3: 3}
    assert run.incarnations() == [0, 0, 0, 0]


def test_a_host_that_is_not_waited_for_delays_nothing() -> None:
    removed, absent = Restarting(), Restarting()
    for run in (removed, absent):
        run.report_host("local", 0, 1)
        run.report_worker(0)
        run.report_worker(1)
        assert run.holders() == {}
    removed.broker.handle(ev.HostRemoved("far", (2, 3)))
    absent.broker.handle(ev.HostAbsent("far"))
    assert removed.holders() == absent.holders() == {0: 0, 1: 1, 2: 0, 3: 1}


def test_after_the_time_limit_it_begins_with_who_is_there_and_a_late_host_takes_nothing() -> None:
    run = Restarting()
    run.report_host("local", 0, 1)
    run.report_worker(0, 5.0)
    run.report_worker(1, 5.0)
    run.report_worker(0, 4.9 + START_S)
    assert run.holders() == {}
    run.report_worker(0, 5.0 + START_S)
    begun = {0: 0, 1: 1, 2: 0, 3: 1}
    assert run.holders() == begun
    run.report_host("far", 2, 3)
    for index in (2, 3, 0, 1):
        run.report_worker(index, 6.0 + START_S)
    assert run.holders() == begun
    assert run.incarnations() == [0, 0, 0, 0]
    assert not run.broker.assignment.requests


def test_what_a_lost_host_had_goes_to_who_has_the_least() -> None:
    run = Restarting()
    run.report_host("local", 0, 1)
    run.report_host("far", 2, 3)
    for index in range(4):
        run.report_worker(index)
    run.report_host("late", 4)
    run.report_worker(4)
    run.broker.handle(ev.HostRemoved("far", (2, 3)))
    requests = run.broker.assignment.requests
    assert [(request.vector_env, request.incarnation) for request in requests] == [(2, 1), (3, 1)]
    for vector_env in (2, 3):
        run.broker.handle(ev.HandoverAnswered(Handover(vector_env, 1, 0, ())))
    assert run.holders() == {0: 0, 1: 1, 2: 4, 3: 0}


def test_a_vector_env_not_yet_begun_moves_unchanged() -> None:
    """Worker 1 never becomes ready: its vector envs begin with the same seeds at worker 0."""
    run = Restarting({"local": 2})
    run.report_host("local", 0, 1)
    run.report_worker(0)
    run.broker.handle(ev.HostReported({0: 0}, (1,), "local", (0,)))
    run.report_worker(0)
    assert run.holders() == {0: 0, 1: 0, 2: 0, 3: 0}
    assert run.incarnations() == [0, 0, 0, 0]


def test_exact_recovery_begins_with_who_is_there_and_shares_with_who_comes() -> None:
    run = Restarting(recovery="exact")
    run.report_host("local", 0, 1)
    run.report_worker(0)
    run.report_worker(1)
    assert run.holders() == {0: 0, 1: 1, 2: 0, 3: 1}
    run.report_host("far", 2, 3)
    run.report_worker(2)
    run.report_worker(0)
    run.report_worker(0)
    assert run.holders() != {0: 0, 1: 1, 2: 0, 3: 1}
