"""Who the others wait for, from reported rates; and the report of a slow worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from zmqrl.config.codec import replace
from zmqrl.launch.run.bottleneck import bottleneck, find_bottleneck, relieved_workers, slowest, slowest_worker
from zmqrl.launch.run.events import take
from zmqrl.launch.run.host_records import ProcessRecord
from zmqrl.launch.run.problem_reports import SlowWorkerReport
from zmqrl.launch.run.state import RunState
from zmqrl.types import ModeName
from zmqrl.views.base import bottleneck_of


def rows(*figures: tuple[str, float, float]) -> list[ProcessRecord]:
    """Host, env steps per second, wait fraction."""
    return [
        ProcessRecord(host, "worker", index, "ready", True, 100, rate, wait)
        for index, (host, rate, wait) in enumerate(figures)
    ]


def test_one_slow_host_is_the_bottleneck_and_not_the_bus() -> None:
    workers = rows(("a", 10.0, 0.84), ("b", 10.0, 0.83), ("node02", 10.0, 0.001))
    late = slowest(workers)
    assert late is not None and (late.host, late.worker) == ("node02", 2)
    assert late.factor == pytest.approx(6.06, rel=0.01)
    assert str(late) == "node02 (worker 2), 6.1x slower"
    assert bottleneck(workers, 0.95, 0.0, late) == "workers"
    assert bottleneck(workers, 0.95, 0.0, None) == "bus", "what it was called before"


def test_a_slow_host_is_compared_with_the_workers_of_other_hosts() -> None:
    workers = rows(("slow", 10.0, 0.0), ("slow", 10.5, 0.05), ("slow", 10.2, 0.02), ("fast", 10.0, 0.9))
    late = slowest(workers)
    assert late is not None and late.factor == pytest.approx(10.0)


@pytest.mark.parametrize(
    "workers",
    [
        rows(("a", 10.0, 0.3), ("b", 10.0, 0.1)),  # 1.3 times
        rows(("a", 10.0, 0.9), ("b", 10.0, 0.6)),  # all wait for the learner
        rows(("a", 10.0, 0.0)),
        rows(("a", 10.0, 0.9), ("b", 0.0, 0.0)),  # it has not reported yet
        [],
    ],
)
def test_no_host_is_named_without_being_clearly_slower(workers: list[ProcessRecord]) -> None:
    assert slowest(workers) is None


def made(tmp_path: Path, mode: ModeName) -> RunState:
    plan = stand_in_plan(tmp_path / "run")
    state = RunState(replace(plan, config=replace(plan.config, run=replace(plan.config.run, mode=mode))))
    tell(state, "metrics", role="learner", values={"wait_fraction": 0.9, "env_steps": 10})
    for index, wait in enumerate((0.8, 0.0)):
        tell(state, "ready", role="worker", index=index)
        tell(state, "worker", role="worker", index=index, env_steps=10, env_steps_per_s=20.0, wait_fraction=wait)
    return state


def tell(state: RunState, name: str, index: int = 0, **data: Any) -> None:
    take(state, host_event("local", name, index=index, **data))


def test_it_is_reported_once_after_a_while(tmp_path: Path) -> None:
    state, report = made(tmp_path, "sync"), SlowWorkerReport()
    found = [(second, report.check(state, second)) for second in range(200)]
    ((second, problem),) = [(second, one) for second, one in found if one is not None]
    assert second == 30 and "worker 1 is 5.0 times slower than the others" in problem.cause
    tell(state, "worker", role="worker", index=1, env_steps=10, env_steps_per_s=20.0, wait_fraction=0.8)
    assert slowest_worker(state) is None


def test_a_pause_of_it_begins_the_wait_again(tmp_path: Path) -> None:
    state, report = made(tmp_path, "sync"), SlowWorkerReport()
    for second in range(100):
        wait = 0.8 if second % 20 == 0 else 0.0
        tell(state, "worker", role="worker", index=1, env_steps=10, env_steps_per_s=20.0, wait_fraction=wait)
        assert report.check(state, second) is None


def test_in_async_no_worker_waits_for_another(tmp_path: Path) -> None:
    assert slowest_worker(made(tmp_path, "async")) is None


def test_a_view_names_it() -> None:
    late = "node02 (worker 2), 6.1x slower"
    assert bottleneck_of({"bottleneck": "workers", "slowest": late}) == f"workers: {late}"
    assert bottleneck_of({"bottleneck": "store", "slowest": late}) == "store"
    assert bottleneck_of({"bottleneck": None}) == "-"


def test_a_worker_that_the_broker_has_relieved_is_named(tmp_path: Path) -> None:
    state = made(tmp_path, "sync")
    tell(state, "relieved", role="broker", worker=1, factor=6.08, before=2, after=0)
    assert relieved_workers(state) == ["local (worker 1), 6.1x slower, has no vector envs"]
    assert "worker 1 is 6.1 times slower than the others" in str(state.problems[-1])
    assert "2 of its 2 vector envs move to faster workers" in str(state.problems[-1])
    tell(state, "relieved", role="broker", worker=1, factor=1.0, before=1, after=2)
    assert (relieved_workers(state), state.problems[-1].cause) == ([], "worker 1 is faster again")


def test_none_is_named_where_the_learner_does_not_know_its_waits(tmp_path: Path) -> None:
    state = RunState(stand_in_plan(tmp_path / "run"))
    tell(state, "worker", role="worker", env_steps=10, wait_fraction=0.7)
    tell(state, "ended", role="learner", wait_fraction=None, store_wait_fraction=None)
    assert find_bottleneck(state) is None
