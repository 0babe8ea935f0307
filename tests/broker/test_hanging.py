"""Which processes an agent is to kill: those that hang, and not those that a cut connection has silenced."""

from __future__ import annotations

import pytest

from zmqrl.broker.liveness import Liveness
from zmqrl.broker.workers import Workers
from zmqrl.config.sections import LimitsSection
from zmqrl.messages.bus import Hanging, Heartbeat

LIMITS = LimitsSection(heartbeat_s=0.5, lost_after_s=5.0, stalled_after_s=8.0)


def named(
    heard: range | list[int], reports: range | list[int], until: int = 60, spawn: int = 2, has_work: bool = True
) -> dict[int, list[Hanging]]:
    """By second, whom the agent of worker 0 is told to kill; heartbeats come in the seconds `heard`."""
    liveness, found = Liveness(LIMITS, Workers(2), "local"), {}
    for second in range(until):
        if second in heard:
            liveness.receive(Heartbeat("worker", 0, spawn, progress=7), second)
        liveness.judge(lambda index: has_work, second)
        if second in reports:
            found[second] = liveness.hanging("far", {0: 2, 1: 0}, second)
    return {second: hanging for second, hanging in found.items() if hanging}


def test_one_without_progress_is_named_as_long_as_it_makes_none() -> None:
    assert named(range(20), range(20)) == {second: [Hanging("worker", 0, 2, "stalled")] for second in range(8, 20)}
    assert not named(range(20), range(20), has_work=False)


def test_a_silent_process_is_named_while_its_agent_reports() -> None:
    assert named(range(3), range(20)) == {second: [Hanging("worker", 0, 2, "lost")] for second in range(7, 20)}


def test_a_worker_behind_a_cut_connection_has_the_same_time_to_return() -> None:
    back = 20
    assert not named([*range(3), *range(back + 4, 32)], [*range(3), *range(back, 32)], until=32)
    assert min(named([*range(3), *range(back + 4, 60)], [*range(3), *range(back, 60)])) == back + 4 + 8, "no progress"
    assert min(named(range(3), [*range(3), *range(back, 60)])) == back + 5, "it does not return"


def test_a_silent_learner_is_named_after_longer_and_to_its_own_agent_alone() -> None:
    """What it computes may keep its heartbeats back, and its death costs more than a worker's."""
    liveness, found = Liveness(LIMITS, Workers(1), "local"), {}
    for second in range(20):
        if second < 4:
            liveness.receive(Heartbeat("learner", 0, 1, progress=7), second)
        liveness.judge(lambda index: True, second)
        found[second] = liveness.hanging("local", {}, second)
        assert not liveness.hanging("far", {}, second)
    assert {second for second, hanging in found.items() if hanging} == set(range(11, 20))
    assert found[11] == [Hanging("learner", 0, 1, "lost")]


def test_a_learner_is_judged_by_its_silence_alone() -> None:
    """It may wait for workers, so it is not stalled without progress."""
    liveness, found = Liveness(LIMITS, Workers(1), "local"), []
    for second in range(30):
        if second < 15 or second > 25:
            liveness.receive(Heartbeat("learner", 0, 1, progress=7), second)
        found += [(second, one.role, one.state) for one in liveness.judge(lambda index: True, second)]
    assert found == [(19, "learner", "lost"), (26, "learner", "well")]


@pytest.mark.parametrize("lost_after_s", [2.0, 2.1, 3.0])
def test_the_time_between_two_reports_is_no_gap(lost_after_s: float) -> None:
    """An agent reports each heartbeat, and somewhat later than that; two heartbeats are the least `lost_after_s`."""
    reports = [1.05 * n for n in range(10)]
    named_at = [at for at, hanging in named_by_reports(lost_after_s, reports).items() if hanging]
    assert named_at == [at for at in reports if at >= lost_after_s]


def test_a_cut_as_long_as_the_least_time_is_a_gap() -> None:
    assert not any(named_by_reports(2.0, [0.0, 1.0, 3.1, 4.1]).values())


def named_by_reports(lost_after_s: float, reports: list[float]) -> dict[float, list[Hanging]]:
    """By second of a report, whom the agent of a worker with one heartbeat, at 0, is told to kill."""
    liveness = Liveness(LimitsSection(heartbeat_s=1.0, lost_after_s=lost_after_s), Workers(1), "local")
    liveness.receive(Heartbeat("worker", 0, 1, progress=7), 0.0)
    return {at: liveness.hanging("far", {0: 1}, at) for at in reports}


def test_one_that_its_agent_does_not_list_is_not_named() -> None:
    assert not named(range(3), range(20), spawn=1)
    assert not named(range(3), range(20), spawn=3)
