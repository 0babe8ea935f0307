"""What a runner does next: order, fairness, slots, preemption and ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tests.queue.samples import ACTIVE, ANNA, BEN, CLEO, HOSTS, ME, attempt, job, records
from zmqrl.config.codec import replace
from zmqrl.queue.records import MOST_LOST, AttemptEnd, Job, JobEnd
from zmqrl.queue.schedule import (
    LEASE_S,
    Action,
    Capacity,
    CloseAttempt,
    EndJob,
    Grant,
    Preempt,
    RunnerSeen,
    StartRun,
    StopRun,
    decide,
    order,
)

ONE = {"a": Capacity(2, 1)}
YIELDED, LOST = AttemptEnd("yielded", 0), AttemptEnd("lost", -9)


def actions(
    *jobs: Job,
    hosts: dict[str, Capacity] = HOSTS,
    observed: dict[int, AttemptEnd | None] | None = None,
    runners: dict[int, RunnerSeen] = ACTIVE,
    now: float = 0.0,
    resting: Collection[int] = (),
) -> list[Action]:
    return decide(records(*jobs), hosts, ME, runners, observed or {}, now, resting)


def granted(*jobs: Job, **options: Any) -> tuple[int, str] | None:
    """Job and host of the next attempt."""
    found = [each for each in actions(*jobs, **options) if isinstance(each, Grant)]
    assert len(found) <= 1
    return (found[0].job.number, found[0].host) if found else None


def test_jobs_start_in_the_order_of_their_numbers_and_a_higher_priority_first() -> None:
    assert granted(job(2), job(1)) == (1, "a")
    assert granted(job(1), job(2, priority=1)) == (2, "a")
    assert granted(job(1, ANNA, attempt(1, 1)), job(2), job(3)) == (2, "a")


def test_the_number_of_an_attempt_follows_the_last_one_that_was_read() -> None:
    found = actions(job(1, BEN, attempt(7, 1, BEN)), job(2))
    assert [each.number for each in found if isinstance(each, Grant)] == [8]


def test_jobs_of_other_users_are_placed_and_not_started() -> None:
    assert granted(job(1, BEN), hosts=ONE) is None
    assert granted(job(1, BEN), job(2), hosts=ONE) is None
    assert granted(job(1, BEN), job(2)) == (2, "a")
    assert granted(job(1, BEN, cores=4), job(2)) == (2, "b")


def test_the_user_with_the_fewest_cores_is_next() -> None:
    running = job(1, ANNA, attempt(1, 1, host="b"))
    assert granted(running, job(2), job(3, BEN, cores=4)) is None
    assert granted(running, job(2), job(3, BEN)) == (2, "a")
    assert granted(job(1, BEN, attempt(1, 1, BEN, "b")), job(2, BEN, cores=4), job(3)) == (3, "a")


def test_the_position_of_a_job_is_that_of_its_turn() -> None:
    first, second, other = job(2), job(3), job(4, BEN)
    running, urgent = job(1, ANNA, attempt(1, 1), cores=1), job(5, priority=1)
    found = order(records(running, first, second, other, urgent, job(6, is_held=True), job(7, after=(1,))))
    assert found == [urgent, other, first, second]
    assert order(records(first, second, other)) == [first, other, second]


def test_a_user_without_an_active_runner_holds_nothing() -> None:
    idle = {BEN: RunnerSeen(frozenset(HOSTS), -LEASE_S)}
    running = job(1, BEN, attempt(1, 1, BEN))
    assert [type(each) for each in actions(running, job(2), hosts=ONE, runners=idle)] == [Grant]
    assert [type(each) for each in actions(running, job(2), hosts=ONE, runners=idle, now=-0.1)] == []
    assert [type(each) for each in actions(job(1, CLEO), job(2), hosts=ONE, runners=idle)] == [Grant]


def test_a_user_whose_runner_has_other_hosts_is_not_waited_for() -> None:
    elsewhere = {BEN: RunnerSeen(frozenset({"c"}), 0.0)}
    assert [type(each) for each in actions(job(1, BEN), job(2), hosts=ONE, runners=elsewhere)] == [Grant]


def test_later_jobs_leave_the_slots_to_the_first_one_that_waits() -> None:
    running = job(1, BEN, attempt(1, 1, BEN))
    assert granted(running, job(2, cores=4), job(3)) == (3, "b")
    assert granted(running, job(2, cores=4), job(3, gpus=1)) is None


def test_gpus_are_given_by_number() -> None:
    running = job(1, ANNA, attempt(1, 1, gpus=(0,)), gpus=1)
    found = actions(running, job(2, gpus=1), observed={1: None})
    assert [(each.host, each.gpus) for each in found if isinstance(each, Grant)] == [("a", (1,))]
    assert granted(running, job(2, gpus=2)) is None
    assert granted(job(1, gpus=3), job(2)) == (2, "a")


def test_a_job_follows_another_one_that_is_done() -> None:
    after = job(2, after=(1,))
    assert granted(job(1, ANNA, attempt(1, 1)), after) is None
    assert granted(job(1, end=JobEnd("done")), after) == (2, "a")
    assert actions(job(1, end=JobEnd("failed", 1)), after) == [EndJob(after, "skipped")]


def test_a_run_is_started_once_and_closed_when_it_has_ended() -> None:
    running = job(1, ANNA, attempt(1, 1))
    live = running.attempts[0]
    assert actions(running) == [StartRun(running, live)]
    assert actions(running, observed={1: None}) == []
    assert actions(running, observed={1: LOST}) == [CloseAttempt(running, live, LOST)]


def test_the_run_of_an_earlier_runner_is_closed_and_not_started() -> None:
    inherited = job(1, ANNA, attempt(1, 1, runner="earlier"))
    assert actions(inherited) == []
    assert actions(inherited, observed={1: YIELDED}) == [CloseAttempt(inherited, inherited.attempts[0], YIELDED)]


def test_a_job_that_yielded_continues_on_its_host() -> None:
    assert granted(job(1, ANNA, attempt(1, 1, host="b", end=YIELDED))) == (1, "b")
    assert granted(job(1, ANNA, attempt(1, 1, host="c", end=YIELDED))) is None


def test_a_job_that_could_not_begin_tries_the_other_hosts() -> None:
    away = AttemptEnd("lost", 4, has_begun=False)
    first, second = attempt(1, 1, host="a", end=away), attempt(2, 1, host="b", end=away)
    assert granted(job(1, ANNA, first)) == (1, "b")
    assert granted(job(1, ANNA, first, second)) == (1, "a")
    assert granted(job(1, ANNA, first, attempt(2, 1, host="b", end=LOST))) == (1, "b")
    assert granted(job(1, ANNA, first, cores=4)) == (1, "a"), "no other host has the slots"
    yielded = attempt(1, 1, end=AttemptEnd("yielded", has_begun=False))
    assert granted(job(1, ANNA, yielded)) == (1, "a"), "a host that a job left for another one is none that failed"


def test_a_host_where_the_last_attempt_of_the_user_could_not_begin_is_chosen_last() -> None:
    away, stopped = AttemptEnd("lost", 4, has_begun=False), JobEnd("stopped")
    first, new = job(1, ANNA, attempt(1, 1, host="a", end=away), end=stopped), job(9)
    assert granted(first, new) == (9, "b")
    assert granted(first, job(2, ANNA, attempt(2, 2, host="b")), new) == (9, "a"), "b has no free core"
    for end in (AttemptEnd("done", 0), LOST):
        assert granted(job(2, ANNA, attempt(2, 2, end=end), end=stopped), first, new) == (9, "a")
    other = job(1, BEN, attempt(1, 1, BEN, end=away), end=stopped)
    assert granted(other, new) == (9, "a")


def test_a_job_rests_after_a_lost_attempt_and_others_pass_it() -> None:
    lost = job(1, ANNA, attempt(1, 1, end=LOST))
    assert granted(lost, job(2), resting=[1]) == (2, "a")
    assert granted(lost, job(2)) == (1, "a")


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("failed", 1)])
def test_a_job_ends_with_its_run(outcome: str, code: int) -> None:
    ended = job(1, ANNA, attempt(1, 1, end=AttemptEnd(outcome, code)))  # type: ignore[arg-type]
    assert actions(ended) == [EndJob(ended, outcome, code)]  # type: ignore[arg-type]
    assert actions(replace(ended, end=JobEnd("done"))) == []


def test_a_job_whose_attempts_are_all_lost_fails() -> None:
    lost = [attempt(number, 1, end=LOST) for number in range(1, MOST_LOST + 1)]
    failed = job(1, ANNA, *lost)
    assert granted(job(1, ANNA, *lost[1:])) == (1, "a")
    assert granted(job(1, ANNA, *lost[:-1], replace(lost[-1], end=YIELDED))) == (1, "a")
    assert actions(failed) == [EndJob(failed, "failed", -9)]


def test_a_stop_ends_a_waiting_job_and_the_run_of_a_running_one() -> None:
    waiting, running = job(1, is_stopped=True), job(2, ANNA, attempt(1, 2), is_stopped=True)
    assert actions(waiting) == [EndJob(waiting, "stopped")]
    assert actions(running, observed={1: None}) == [StopRun(running, running.attempts[0])]
    assert actions(running) == [CloseAttempt(running, running.attempts[0], AttemptEnd("yielded", has_begun=False))]


def test_a_held_job_keeps_its_place() -> None:
    running = job(2, ANNA, attempt(1, 2), is_held=True)
    assert granted(job(1, is_held=True), job(3)) == (3, "a")
    assert actions(running, observed={1: None}) == [StopRun(running, running.attempts[0])]


def test_a_job_of_a_higher_priority_requests_the_fewest_and_lowest_to_yield() -> None:
    low = job(1, BEN, attempt(1, 1, BEN), priority=-1, cores=1)
    middle = job(2, BEN, attempt(2, 2, BEN), cores=1)
    latest = job(3, CLEO, attempt(3, 3, CLEO), cores=2)
    urgent = job(4, priority=1, cores=3)
    again = replace(urgent, preempts=frozenset({9}))
    first, third = low.attempts[0], latest.attempts[0]
    assert actions(low, middle, latest, urgent) == [Preempt(urgent, first), Preempt(urgent, third)]
    assert actions(low, middle, latest, again) == [Preempt(again, first), Preempt(again, third)]
    assert actions(low, middle, latest, replace(urgent, preempts=frozenset({1}))) == []
    assert granted(low, middle, latest, job(4, cores=3)) is None


@pytest.mark.parametrize(
    ("change", "yields"),
    [({}, True), ({"priority": 0}, False), ({"is_held": True}, False), ({"uid": 1, "priority": 1}, False)],
)
def test_a_run_yields_to_a_valid_request(change: dict[str, Any], yields: bool) -> None:
    running = job(1, ANNA, attempt(1, 1))
    request: dict[str, Any] = {"uid": BEN, "priority": 1, "preempts": frozenset({1}), **change}
    urgent = job(2, **request)
    found = actions(running, urgent, hosts=ONE, observed={1: None})
    assert found == ([StopRun(running, running.attempts[0], urgent)] if yields else [])
    highest = replace(urgent, number=3, record=replace(urgent.record, priority=2))
    if yields:
        found = actions(running, urgent, highest, hosts=ONE, observed={1: None})
        assert found == [StopRun(running, running.attempts[0], highest)]
