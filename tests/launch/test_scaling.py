"""Which workers each host is to hold, and every refusal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from tests.shared_memory.bus_plans import bus_plan
from tests.support.raising import fields, raises
from zmqrl.config.codec import replace
from zmqrl.config.plan import MOST_WORKERS, RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError
from zmqrl.launch.run.boots import boot_of
from zmqrl.launch.run.hosts import Hosts
from zmqrl.launch.run.scaling import check_counts
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import ModeName

TOO_MANY = "gives 5 workers for 4 vector envs: in sync each worker needs at least one"


def plan_of(mode: ModeName = "sync", vector_envs: int = 4) -> RunPlan:
    plan = bus_plan(mode, vector_envs=vector_envs)
    hosts = {"local": HostSection(workers=2), "b": HostSection(workers=1), "c": HostSection(workers=0)}
    return replace(plan, config=replace(plan.config, hosts=hosts), workers={"local": 2, "b": 1, "c": 0})


class Run:
    """A run and its records."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.hosts = plan, Hosts(plan)

    def scale(self, host: str, workers: int) -> tuple[int, ...]:
        check_counts(self.plan, self.hosts, {host: workers}, least=0)
        return self.hosts.assign(host, workers)

    def check(self, wanted: Mapping[str, int], admitted: Collection[str] = ()) -> None:
        check_counts(self.plan, self.hosts, wanted, admitted=admitted)

    def fail(self, *indexes: int) -> None:
        """These workers of `local` alone are not restarted."""
        for index in self.hosts["local"].assigned:
            record = self.hosts["local"].record(ProcessSlot("worker", index))
            record.state = "failed" if index in indexes else "ready"

    def held(self, host: str) -> tuple[int, ...]:
        return self.hosts[host].held

    def revoke(self, host: str) -> None:
        """The host is lost, and the broker has removed its workers."""
        self.hosts[host].is_revoked = True


def test_an_index_that_was_given_up_is_never_used_again() -> None:
    run = Run(plan_of())
    assert (run.held("local"), run.held("b"), run.hosts.total_workers) == ((0, 1), (2,), 3)
    assert run.scale("b", 2) == (2, 3)
    assert run.scale("b", 0) == ()
    assert run.scale("b", 1) == (4,)
    run.revoke("b")
    assert run.scale("b", 2) == (5, 6)
    assert run.hosts.total_workers == 4


def test_workers_that_are_not_restarted_leave_first() -> None:
    run = Run(plan_of())
    run.fail(0)
    assert run.scale("local", 1) == (1,)
    run.fail()
    assert run.scale("local", 3) == (1, 3, 4)
    run.fail(3)
    assert run.scale("local", 3) == (1, 3, 4)
    assert run.scale("local", 2) == (1, 4)
    run.fail(1, 4)
    assert run.scale("local", 1) == (1,)


@pytest.mark.parametrize(("mode", "host", "workers", "fault"), [
    ("sync", "x", 1, fields(what="unknown host 'x'")),
    ("sync", "c", 1, fields(what="unknown host 'c'")),
    ("single", "b", 1, fields(what="mode single has no workers to scale")),
    ("sync", "b", 3, fields(value="b=3", what=TOO_MANY)),
    ("async", "b", 3, fields(value="b=3", what="gives 5 workers, and this run supports at most 4")),
])  # fmt: skip
def test_refusals(mode: ModeName, host: str, workers: int, fault: dict[str, Any]) -> None:
    run = Run(plan_of(mode))
    with raises(ConfigError, **fault):
        run.scale(host, workers)
    assert run.held("b") == (2,), "nothing was changed"


def test_in_async_the_slots_of_workers_that_left_are_reused_until_the_indexes_are_used_up() -> None:
    run = Run(plan_of("async"))
    for _ in range(100):
        run.revoke("b")
        assert len(run.scale("b", 2)) == 2
    assert run.held("b") == (201, 202)
    run.hosts.next_index = MOST_WORKERS - 1
    run.revoke("b")
    with raises(
        ConfigError,
        key=(),
        value="b=2",
        what=f"the run has already started {MOST_WORKERS - 1} workers, and the limit is {MOST_WORKERS}",
    ):
        run.scale("b", 2)
    assert run.scale("b", 1) == (MOST_WORKERS - 1,)


def test_the_learner_s_host_takes_part_without_workers() -> None:
    run = Run(replace(plan_of(), workers={"local": 0, "b": 2}))
    assert run.scale("local", 1) == (2,)


def test_a_host_is_admitted() -> None:
    run = Run(plan_of())
    run.check({"x": 1}, admitted=["x"])
    with raises(ConfigError, key=(), what="unknown host 'x'"):
        run.scale("x", 1)
    run.hosts.admit(boot_of(run.plan, "x", ()))
    assert run.scale("x", 1) == (3,)


def test_workers_move_to_another_host_in_one_request() -> None:
    """Those that leave make room first, and in between the run may have none."""
    run = Run(plan_of())
    run.check({"x": 4, "local": 0, "b": 0}, admitted=["x"])
    with raises(ConfigError, key=(), value="local, b", what="no other host has workers, and a run needs one"):
        run.check({"local": 0, "b": 0})


def test_the_last_worker_stays() -> None:
    run = Run(plan_of())
    run.scale("local", 0)
    with raises(ConfigError, key=(), value="b", what="no other host has workers, and a run needs one"):
        run.check({"b": 0})


def test_of_several_changes_all_are_tried_before_any_is_made() -> None:
    run = Run(plan_of())
    run.check({"local": 1, "b": 3})
    with raises(ConfigError, key=(), value="b=3", what=TOO_MANY):
        run.check({"local": 2, "b": 3})
    assert (run.held("local"), run.held("b")) == ((0, 1), (2,)), "nothing was changed"
    assert run.scale("b", 2) == (2, 3), "no index was used up"
