"""Who holds which vector env, asked of the class that decides it: no slots, no leases, no processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.membership import Membership
from zmqrl.broker.orders import RESUMED_SHIFT, TakeUp, TakeUpRequest
from zmqrl.broker.placement import Placement
from zmqrl.broker.streams import Streams
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import ModeName, Version


class Placed:
    """A placement with the books it writes into, and the members it asks for."""

    def __init__(self, mode: ModeName = "sync", resume: bool = False, arena: Arena | None = None) -> None:
        self.plan = replace(bus_plan(mode, workers=2, vector_envs=2), resume=resume)
        self.arena = arena or Arena.private(self.plan)
        self.streams = Streams(self.arena, ROWS)
        self.members = Membership(mode != "async", 2)
        self.actions: list[ev.Action] = []
        self.placement = Placement(self.plan, self.streams, self.members, self.actions)

    def hold(self, *indexes: int) -> None:
        """The only host's word of its workers."""
        self.members.hear("local", indexes, ())
        self.placement.review()
        self.placement.place()

    def join(self, index: int) -> None:
        self.placement.join(index)
        self.placement.place()

    def says(self, index: int, streams: Mapping[int, int], serial: int) -> bool:
        return self.placement.hear(ev.WorkerIs(index, 0, (), streams, serial=serial))

    def orders(self, index: int) -> dict[int, tuple[int, int]]:
        """Vector env to (incarnation, next index)."""
        standing = self.placement.standing(index, 0, (), False)
        return {o.vector_env: (o.incarnation, o.next_index) for o in standing.orders or ()}

    def fill(self, vector_env: int, segments: int) -> None:
        """So many segments of one row each were booked."""
        record = self.streams.records[vector_env]
        record.next_index, record.stored = record.next_index + segments, record.stored + segments
        self.arena.streams.write(vector_env, record)


@pytest.fixture
def placed() -> Placed:
    """Worker 0 steps both vector envs; worker 1 is not there."""
    made = Placed()
    made.hold(0)
    made.join(0)
    assert made.orders(0) == {0: (0, 0), 1: (0, 0)}
    return made


def test_nothing_is_given_out_before_min_workers_are_there() -> None:
    placed = Placed()
    placed.placement = Placement(
        replace(placed.plan, config=replace(placed.plan.config, min_workers=2)), placed.streams, placed.members, []
    )
    placed.hold(0, 1)
    placed.join(0)
    assert not placed.placement.holders
    placed.join(1)
    assert placed.placement.holders == {0: 0, 1: 1}
    placed.placement.leave(1)
    placed.hold(0)
    assert placed.placement.requests == [TakeUpRequest(1, 1, 0)], "the run has begun: fewer may go on"


def test_one_that_moves_has_its_old_holder_until_that_has_stopped(placed: Placed) -> None:
    placed.hold(0, 1)
    placed.join(1)
    assert placed.orders(0) == {0: (0, 0)}
    assert placed.placement.holders == {0: 0, 1: 0}
    serial = placed.placement.standing(0, 0, (), False).serial
    assert not placed.says(0, {0: 0, 1: 0}, serial - 1), "it does not know yet"
    assert placed.says(0, {0: 0, 1: 0}, serial)
    placed.placement.let_go(0)
    assert placed.placement.holders == {0: 0, 1: 0}, "it has unbooked segments"
    assert placed.says(0, {0: 0}, serial)
    placed.placement.let_go(0)
    assert placed.placement.holders == {0: 0}
    placed.placement.place()
    assert placed.placement.requests == [TakeUpRequest(1, 1, 0)]
    assert placed.actions[-1] == ev.Ask()


def test_orders_are_repeated_until_they_are_followed(placed: Placed) -> None:
    serial = placed.placement.standing(0, 0, (), False).serial
    placed.says(0, {}, serial - 1)
    assert placed.placement.standing(0, 0, (), False).orders is not None
    placed.says(0, {0: 0, 1: 0}, serial)
    assert placed.placement.standing(0, 0, (), False).orders is None


def test_a_successor_goes_on_where_the_learner_says(placed: Placed) -> None:
    placed.fill(1, 3)
    placed.arena.streams.write_open(1, 3, 5)
    placed.placement.leave(0)
    assert placed.placement.holders == {}
    assert placed.arena.ledger().dropped["unsealed"] == 5
    placed.join(0)
    assert placed.placement.requests == [TakeUpRequest(0, 1, 0), TakeUpRequest(1, 1, 3)]
    placed.placement.answer(TakeUp(1, 0, 3, ()))
    assert placed.orders(0) == {}, "an answer to an older request"
    placed.placement.answer(TakeUp(1, 1, 3, ()))
    assert placed.orders(0) == {1: (1, 3)}
    assert placed.placement.requests == [TakeUpRequest(0, 1, 0)]


def test_async_a_successor_begins_at_once() -> None:
    placed = Placed("async")
    placed.hold(0)
    placed.join(0)
    placed.fill(0, 3)
    placed.placement.leave(0)
    placed.join(0)
    assert placed.orders(0) == {0: (1, 0)}
    assert not placed.placement.requests


def test_due_is_what_the_version_still_lacks(placed: Placed) -> None:
    assert placed.placement.due(0) == 2
    placed.fill(0, 1)
    assert placed.placement.due(0) == 1
    placed.placement.announce(Version(0, 1), None)
    assert placed.placement.due(0) == 2


def test_going_back_takes_all_off_and_opens_their_positions_again(placed: Placed) -> None:
    for vector_env in (0, 1):
        placed.fill(vector_env, 3)
    placed.placement.announce(Version(2, 1), (1, 1))
    placed.placement.place()
    assert placed.orders(0) == {}
    assert placed.placement.holders == {0: 0, 1: 0}
    assert placed.says(0, {}, placed.placement.standing(0, 0, (), False).serial)
    placed.placement.let_go(0)
    placed.placement.place()
    first = (2 << RESUMED_SHIFT) + 1
    assert placed.placement.requests == [TakeUpRequest(0, first, 1), TakeUpRequest(1, first, 1)]
    ledger = placed.arena.ledger()
    assert (ledger.stored, ledger.dropped["rolled_back"]) == (2, 4)


def test_going_back_beyond_what_was_stored_ends_the_run(placed: Placed) -> None:
    placed.placement.announce(Version(2, 1), (1, 1))
    placed.placement.leave(0)
    placed.join(0)
    assert [a.cause for a in placed.actions if isinstance(a, ev.Fail)] == [
        f"the learner rolled back to version {Version(2, 1)}, newer than the stored rows"
    ] * 2
    assert not placed.placement.requests


def test_an_older_version_without_its_rows_ends_the_run(placed: Placed) -> None:
    placed.fill(0, 3)
    placed.placement.announce(Version(1, 2), None)
    assert not [a for a in placed.actions if isinstance(a, ev.Fail)]
    placed.placement.announce(Version(2, 1), None)
    assert len([a for a in placed.actions if isinstance(a, ev.Fail)]) == 1


def test_rows_of_another_number_of_vector_envs_are_refused(placed: Placed) -> None:
    placed.placement.announce(Version(2, 0), (0, 0, 0))
    placed.placement.place()
    assert placed.actions[-1] == ev.Refuse("value")
    assert placed.orders(0) == {0: (0, 0), 1: (0, 0)}


def test_only_the_incarnation_that_is_open_can_be_claimed(placed: Placed) -> None:
    placed.streams.sweep(1)
    after = Placed(arena=placed.arena)
    after.placement.join(1)
    after.placement.claim(1, {0: 1, 1: 0, 77: 0})
    assert after.placement.holders == {}
    after.placement.claim(1, {0: 0})
    assert after.placement.holders == {0: 1}
    after.placement.join(0)
    after.placement.claim(0, {0: 0})
    assert after.placement.holders == {0: 1}, "the first who claims it has it"


def test_a_resumed_run_waits_for_the_learner_and_begins_under_its_incarnation() -> None:
    placed = Placed(resume=True)
    placed.hold(0)
    placed.join(0)
    assert not placed.placement.requests
    placed.placement.announce(Version(3, 7), None)
    placed.placement.place()
    first = 3 << RESUMED_SHIFT
    assert placed.placement.requests == [TakeUpRequest(0, first, 0), TakeUpRequest(1, first, 0)]
