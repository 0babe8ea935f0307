"""The plan of faults: seeded, over all kinds, within its time."""

from __future__ import annotations

from collections import Counter

import pytest

from zmqrl.drill.faults import HOLD_S, SHARES, Action, Kind, Target, kinds_named, plan_faults
from zmqrl.errors import ConfigError

ROLES = frozenset({"worker", "broker", "learner", "evaluator"})
LEARNING = Target("learning", ROLES, 3)
WITNESS = Target("witness", ROLES - {"evaluator"}, 3, stalls=True)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    first, again, other = (plan_faults(seed, 50, 60.0, [LEARNING, WITNESS]) for seed in (4, 4, 5))
    assert first == again != other


def test_faults_come_in_order_within_the_time() -> None:
    plan = plan_faults(1, 100, 600.0, [LEARNING, WITNESS])
    times = [fault.at_s for fault in plan]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 600
    assert [fault.number for fault in plan] == list(range(100))


def test_a_deck_holds_every_kind_as_often_as_its_share() -> None:
    size = sum(n for (_, action), n in SHARES.items() if action != "stall")
    plan = plan_faults(7, size, 60.0, [LEARNING])
    assert Counter((f.kind.role, f.kind.action.value) for f in plan) == {
        name: n for name, n in SHARES.items() if name[1] != "stall"
    }


def test_what_a_run_cannot_have_is_not_planned() -> None:
    plan = plan_faults(2, 300, 60.0, [LEARNING, WITNESS])
    assert not [f for f in plan if f.run == "learning" and f.kind.action is Action.STALL]
    assert not [f for f in plan if f.run == "witness" and f.kind.role == "evaluator"]
    assert [f for f in plan if f.run == "witness" and f.kind.action is Action.STALL]
    assert {f.index for f in plan if f.kind.role == "worker"} == {0, 1, 2}
    assert {f.index for f in plan if f.kind.role != "worker"} == {0}


def test_only_what_is_held_has_a_time() -> None:
    for fault in plan_faults(3, 200, 60.0, [WITNESS]):
        held = fault.kind.action in (Action.PAUSE, Action.NO_SPACE)
        assert (HOLD_S[0] <= fault.hold_s <= HOLD_S[1]) if held else fault.hold_s == 0.0


def test_only_the_kinds_that_were_asked_for() -> None:
    only = kinds_named(["broker:kill", "evaluator"])
    assert only == {Kind("broker", Action.KILL), Kind("evaluator", Action.KILL)}
    plan = plan_faults(3, 40, 60.0, [Target("learning", ROLES, 2, only=only)])
    assert {f.kind for f in plan} == only


@pytest.mark.parametrize("word", ["brokr", "broker:hang", "worker:"])
def test_a_kind_that_does_not_exist_is_named(word: str) -> None:
    if word == "worker:":  # a role alone, written with its colon
        assert len(kinds_named([word])) == 4
        return
    with pytest.raises(ConfigError, match=rf"--only {word}: .*broker:kill"):
        kinds_named([word])


def test_a_run_without_the_role_that_was_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="--only"):
        plan_faults(1, 5, 10.0, [Target("single", frozenset({"learner"}), 0, only=kinds_named(["broker"]))])
