from __future__ import annotations

import pytest

from zmqrl.config.sections import RestartSection
from zmqrl.supervision.restarts import (
    AT_START,
    BY_EXIT,
    NO_SEGMENT,
    Died,
    FailRun,
    ProcessSlot,
    RestartAfter,
    Start,
    StopRestarting,
    Supervision,
    Tick,
)

RESTART = RestartSection(max=4, window_s=100.0, backoff_s=0.5, backoff_max_s=1.5)
WORKER, OTHER, LEARNER, EVALUATOR = (
    ProcessSlot("worker", 0),
    ProcessSlot("worker", 1),
    ProcessSlot("learner", 0),
    ProcessSlot("evaluator", 0),
)


def alone(workers: int, restart: RestartSection = RESTART) -> Supervision:
    """Of the only host of the run."""
    return Supervision(restart, range(workers), alone=True)


def died(slot: ProcessSlot, code: int = 1) -> Died:
    return Died(slot, code, "why")


def test_the_first_restart_is_immediate_then_backoff_doubles_up_to_its_limit_and_spawns_count() -> None:
    supervision = alone(2)
    now, delays, spawns = 0.0, [], []
    for _ in range(4):
        (action,) = supervision.handle(died(WORKER), now)
        assert isinstance(action, RestartAfter)
        delays.append(action.delay_s)
        assert supervision.next_due() == now + action.delay_s
        assert supervision.handle(Tick(), now + action.delay_s - 0.01) == []
        now += action.delay_s
        (start,) = supervision.handle(Tick(), now)
        assert isinstance(start, Start)
        spawns.append(start.spawn)
    assert delays == [0.0, 0.5, 1.0, 1.5]
    assert spawns == [1, 2, 3, 4]
    assert supervision.handle(died(WORKER), now) == [StopRestarting(WORKER, "why")]
    assert supervision.next_due() is None


def test_the_backoff_has_its_limit_after_any_number_of_deaths() -> None:
    restart = RestartSection(max=100_000, window_s=1e9, backoff_s=0.5, backoff_max_s=1.5)
    supervision = Supervision(restart, range(1), alone=True)
    for number in range(2000):
        (action,) = supervision.handle(died(WORKER), float(number))
        assert isinstance(action, RestartAfter)
        supervision.handle(Tick(), number + action.delay_s)
    assert action.delay_s == 1.5


def test_the_same_exception_in_the_same_update_is_not_tried_a_third_time() -> None:
    supervision = alone(1)
    for update in (7, 9):
        (action,) = supervision.handle(Died(LEARNER, 1, "why", f"in update {update}"), float(update))
        assert isinstance(action, RestartAfter)
    (action,) = supervision.handle(died(LEARNER), 10.0)  # killed: this says nothing of the update
    assert isinstance(action, RestartAfter)
    stop, fail = supervision.handle(Died(LEARNER, 1, "why", "in update 9"), 11.0)
    assert stop == StopRestarting(LEARNER, "why (twice in update 9)")
    assert isinstance(fail, FailRun) and "learner-0 is not restarted: why (twice in update 9)" in fail.cause


def test_a_process_that_user_code_ends_twice_within_the_window_is_not_tried_a_third_time() -> None:
    supervision = alone(1)
    for now in (0.0, 2 * RESTART.window_s):
        (action,) = supervision.handle(Died(LEARNER, 70, "SystemExit (a.py:7)", BY_EXIT), now)
        assert isinstance(action, RestartAfter)
    stop, fail = supervision.handle(Died(LEARNER, 70, "SystemExit (a.py:7)", BY_EXIT), 2.5 * RESTART.window_s)
    assert stop == StopRestarting(LEARNER, "SystemExit (a.py:7) (twice in the same way)")
    assert isinstance(fail, FailRun)


def test_another_exception_in_the_same_update_is_another_fault() -> None:
    supervision = alone(1)
    for cause in ("why", "why else", "why"):
        (action,) = supervision.handle(Died(LEARNER, 1, cause, "in update 7"), 0.0)
        assert isinstance(action, RestartAfter)


def test_the_same_exception_before_the_first_step_is_not_tried_a_third_time() -> None:
    supervision = alone(1)
    (action,) = supervision.handle(Died(WORKER, 1, "KeyError: seed 41", AT_START), 0.0)
    assert isinstance(action, RestartAfter)
    stop, fail = supervision.handle(Died(WORKER, 1, "KeyError: seed 97", AT_START), 1.0)
    assert stop == StopRestarting(WORKER, "KeyError: seed 97 (twice before its first step)")
    assert isinstance(fail, FailRun)


def test_what_happened_at_the_start_of_a_process_long_ago_does_not_count() -> None:
    supervision = alone(1)
    for n in range(3):
        (action,) = supervision.handle(Died(WORKER, 1, "why", AT_START), n * 101.0)
        assert isinstance(action, RestartAfter)


def test_workers_that_all_raise_the_same_before_their_first_segment_end_the_run() -> None:
    supervision = alone(2)

    def barren(slot: ProcessSlot, seed: int, now: float) -> list[str]:
        return [type(a).__name__ for a in supervision.handle(Died(slot, 1, f"NaN, seed {seed}", NO_SEGMENT), now)]

    assert [barren(WORKER, seed, 1.0) for seed in range(2)] == [["RestartAfter"]] * 2, "the other one may train"
    supervision.delivered(WORKER)
    assert [barren(OTHER, seed, 2.0) for seed in range(2)] == [["RestartAfter"]] * 2, "a worker delivers"
    assert barren(WORKER, 6, 4.0) == ["RestartAfter"], "once since then"
    other, stop, fail = supervision.handle(Died(WORKER, 1, "NaN, seed 7", NO_SEGMENT), 5.0)
    assert other == StopRestarting(OTHER, "NaN, seed 1 (twice before its first segment)")
    assert stop == StopRestarting(WORKER, "NaN, seed 7 (twice before its first segment)")
    assert isinstance(fail, FailRun) and fail.cause.startswith("all rollout workers failed")
    assert supervision.next_due() is None


def test_deaths_outside_the_window_are_forgotten() -> None:
    supervision = alone(1)
    for n in range(10):
        (action,) = supervision.handle(died(WORKER), n * 101.0)
        assert action == RestartAfter(WORKER, 0.0)
        supervision.handle(Tick(), n * 101.0 + 1)


def test_indexes_are_counted_apart() -> None:
    supervision = alone(2, RestartSection(max=1))
    assert isinstance(supervision.handle(died(WORKER), 0.0)[0], RestartAfter)
    assert isinstance(supervision.handle(died(OTHER), 0.0)[0], RestartAfter)


@pytest.mark.parametrize("role", ["learner", "broker"])
def test_giving_up_learner_or_broker_fails_the_run(role: str) -> None:
    actions = alone(1, RestartSection(max=0)).handle(died(ProcessSlot(role, 0)), 0.0)
    assert [type(action) for action in actions] == [StopRestarting, FailRun]


def test_the_run_fails_with_its_last_worker_and_not_before() -> None:
    supervision = alone(2, RestartSection(max=0))
    assert supervision.handle(died(WORKER), 0.0) == [StopRestarting(WORKER, "why")]
    assert [type(action) for action in supervision.handle(died(OTHER), 0.0)] == [StopRestarting, FailRun]


def test_the_workers_of_now_count() -> None:
    """One worker of the plan, three that were added, and one of these removed after it failed."""
    supervision = alone(1, RestartSection(max=0))
    supervision.set_workers(range(4))
    slots = [ProcessSlot("worker", index) for index in range(4)]
    for slot in slots[:3]:
        assert supervision.handle(died(slot), 0.0) == [StopRestarting(slot, "why")]
    supervision.set_workers((0, 1, 3, 4))
    assert supervision.failed == set(slots[:2])
    assert supervision.handle(died(slots[3]), 0.0) == [StopRestarting(slots[3], "why")]
    assert [type(action) for action in supervision.handle(died(ProcessSlot("worker", 4)), 0.0)] == [
        StopRestarting,
        FailRun,
    ]


def test_a_worker_that_was_removed_is_not_waited_for_where_all_raise_the_same_before_their_first_segment() -> None:
    supervision = alone(2)
    supervision.handle(Died(WORKER, 1, "NaN", NO_SEGMENT), 0.0)
    supervision.set_workers((0,))
    actions = supervision.handle(Died(WORKER, 1, "NaN", NO_SEGMENT), 1.0)
    assert [type(action) for action in actions] == [StopRestarting, FailRun]


def test_where_other_hosts_may_have_workers_no_worker_fails_the_run() -> None:
    supervision = Supervision(RestartSection(max=2), (3,), alone=False)
    slot, names = ProcessSlot("worker", 3), []
    for now in range(3):
        names += [type(action) for action in supervision.handle(Died(slot, 1, "NaN", NO_SEGMENT), float(now))]
    assert names == [RestartAfter, RestartAfter, StopRestarting]


def test_an_evaluator_never_fails_the_run() -> None:
    actions = alone(1, RestartSection(max=0)).handle(died(EVALUATOR), 0.0)
    assert actions == [StopRestarting(EVALUATOR, "why")]


def test_bad_configuration_is_not_tried_again() -> None:
    actions = alone(1).handle(died(LEARNER, code=2), 0.0)
    assert [type(action) for action in actions] == [StopRestarting, FailRun]
