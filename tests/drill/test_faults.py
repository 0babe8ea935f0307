"""The plan of faults: seeded, over all kinds, within its time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.drill.faults import (
    HOLD_S,
    SHARES,
    DrillTarget,
    FaultAction,
    Kind,
    Minimum,
    PlannedFault,
    kinds_named,
    minimums_named,
    plan_faults,
)
from zmqrl.errors import ConfigError

ROLES = frozenset({"worker", "broker", "learner", "evaluator"})
LEARNING = DrillTarget("learning", ROLES, 3)
WITNESS = DrillTarget("witness", ROLES - {"evaluator"}, 3, stalls=True)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    first, again, other = (plan_faults(seed, 50, 60.0, [LEARNING, WITNESS]) for seed in (4, 4, 5))
    assert first == again != other


def test_faults_come_in_order_within_the_time() -> None:
    plan = plan_faults(1, 100, 600.0, [LEARNING, WITNESS])
    times = [fault.at_s for fault in plan]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 600
    assert [fault.number for fault in plan] == list(range(100))


def test_a_deck_holds_every_kind_as_often_as_its_share() -> None:
    special = ("stall", "disk-full")
    size = sum(n for (_, action), n in SHARES.items() if action not in special)
    plan = plan_faults(7, size, 60.0, [LEARNING])
    assert Counter((f.kind.role, f.kind.action.value) for f in plan) == {
        name: n for name, n in SHARES.items() if name[1] not in special
    }


def test_what_a_run_cannot_have_is_not_planned() -> None:
    plan = plan_faults(2, 300, 60.0, [LEARNING, WITNESS])
    assert not [f for f in plan if f.run == "learning" and f.kind.action is FaultAction.STALL]
    assert not [f for f in plan if f.run == "witness" and f.kind.role == "evaluator"]
    assert [f for f in plan if f.run == "witness" and f.kind.action is FaultAction.STALL]
    assert {f.index for f in plan if "worker" in f.kind.roles} == {0, 1, 2}
    assert {f.index for f in plan if "worker" not in f.kind.roles} == {0}
    single = plan_faults(2, 100, 60.0, [DrillTarget("single", frozenset({"learner"}), 0)])
    assert {role for f in single for role in f.kind.roles} == {"learner", "agent", "launcher", "run"}


def test_a_disk_is_filled_only_where_it_is_small() -> None:
    small = replace(WITNESS, small_disk=True)
    assert {f.run for f in plan_faults(2, 300, 60.0, [LEARNING, small]) if f.kind.action is FaultAction.DISK_FULL} == {
        "witness"
    }
    with raises(ConfigError, key=("--at-least",), value="run:disk-full"):
        plan_faults(1, 5, 60.0, [LEARNING, WITNESS], minimums_named(["run:disk-full=1"]))


def test_a_fault_of_several_roles_names_each_process() -> None:
    kind = Kind("worker+broker+learner", FaultAction.KILL)
    assert PlannedFault(0, 1.0, "witness", kind, index=2).slots == ("worker-2", "broker-0", "learner-0")
    assert PlannedFault(0, 1.0, "witness", Kind("run", FaultAction.PAUSE)).slots == ()


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (("run", "store-away"), ("learner", "kill"), True),
        (("run", "store-away"), ("worker", "pause"), True),
        (("run", "store-away"), ("learner", "damage"), False),
        (("run", "store-away"), ("learner", "kill-away"), False),
        (("run", "store-away"), ("agent", "kill"), False),
        (("run", "store-away"), ("run", "pause"), False),
        (("run", "pause"), ("worker", "kill"), False),
        (("learner", "kill"), ("broker", "pause"), True),
        (("broker+learner", "kill"), ("learner", "kill-start"), False),
        (("worker", "kill-end"), ("learner", "kill"), False),
    ],
)
def test_a_process_and_the_store_have_one_fault_at_a_time(
    one: tuple[str, str], other: tuple[str, str], may: bool
) -> None:
    first, second = (PlannedFault(i, 1.0, "witness", Kind(r, FaultAction(a))) for i, (r, a) in enumerate((one, other)))
    assert (first.may_overlap(second), second.may_overlap(first)) == (may, may)


@pytest.mark.parametrize("seed", range(5))
def test_what_has_to_come_is_planned(seed: int) -> None:
    minimums = minimums_named(["worker:kill=6", "agent:kill=6", "evaluator:kill=2"])
    plan = plan_faults(seed, 20, 60.0, [LEARNING, WITNESS], minimums)
    assert len(plan) == 20
    for minimum in minimums:
        assert sum(minimum.counts(f.kind) for f in plan) >= minimum.count
    assert {f.run for f in plan if f.kind.role == "evaluator"} == {"learning"}
    assert plan == plan_faults(seed, 20, 60.0, [LEARNING, WITNESS], minimums)
    assert [f.number for f in plan if f.kind.role == "agent"] != list(range(6, 12))  # spread over the time


def test_a_kill_of_several_roles_counts_for_each_of_them() -> None:
    (minimum,) = minimums_named(["broker:kill=1"])
    assert minimum == Minimum(Kind("broker", FaultAction.KILL), 1)
    assert minimum.counts(Kind("broker+learner", FaultAction.KILL))
    assert not minimum.counts(Kind("broker+learner", FaultAction.PAUSE))
    assert not minimum.counts(Kind("learner", FaultAction.KILL))


@pytest.mark.parametrize("value", ["worker=3", "worker:kill", "worker:kill=0", "worker:kill=x", "wroker:kill=3"])
def test_a_minimum_that_is_not_understood_is_refused(value: str) -> None:
    with raises(ConfigError, key=("--at-least",)) as caught:
        minimums_named([value])
    assert caught.value.value in (value, value.partition("=")[0])


def test_minimums_that_no_plan_can_have_are_refused() -> None:
    with raises(ConfigError, key=("--at-least",), what="6 faults in all, and the drill has 5"):
        plan_faults(1, 5, 60.0, [LEARNING], minimums_named(["worker:kill=6"]))
    with raises(ConfigError, key=("--at-least",), value="evaluator:kill"):
        plan_faults(1, 5, 60.0, [WITNESS], minimums_named(["evaluator:kill=1"]))


def test_only_what_is_held_has_a_time() -> None:
    for fault in plan_faults(3, 200, 60.0, [WITNESS]):
        shortest, longest = HOLD_S.get(fault.kind.action, (0.0, 0.0))
        assert shortest <= fault.hold_s <= longest


def test_only_the_requested_kinds() -> None:
    only = kinds_named(["broker:kill", "evaluator"])
    assert only == {Kind("broker", FaultAction.KILL), Kind("evaluator", FaultAction.KILL)}
    plan = plan_faults(3, 40, 60.0, [DrillTarget("learning", ROLES, 2, only=only)])
    assert {f.kind for f in plan} == only


@pytest.mark.parametrize("value", ["brokr", "broker:hang", "worker:"])
def test_a_kind_that_does_not_exist_is_named(value: str) -> None:
    if value == "worker:":  # a role alone, written with its colon
        assert len(kinds_named([value])) == 6
        return
    with raises(ConfigError, key=("--only",), value=value):
        kinds_named([value])


def test_a_minimum_of_an_unknown_kind_suggests_no_role_alone() -> None:
    with raises(ConfigError, key=("--at-least",), value="broker:foo"):
        minimums_named(["broker:foo=2"])


def test_a_run_without_the_requested_role_is_refused() -> None:
    with raises(ConfigError, key=("--only",)):
        plan_faults(1, 5, 10.0, [DrillTarget("single", frozenset({"learner"}), 0, only=kinds_named(["broker"]))])
