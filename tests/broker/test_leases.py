"""Slots given to workers and taken back, asked of the class that does it."""

from __future__ import annotations

from dataclasses import replace

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.booking import Booking
from zmqrl.broker.membership import Membership
from zmqrl.broker.placement import Placement
from zmqrl.broker.streams import Streams
from zmqrl.shared_memory.arena import LEASE, Arena
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version


class Desk:
    """Bookings of async workers 0 and 1; each has its vector env."""

    def __init__(self, arena: Arena | None = None, slots: int = 8, resume: bool = False) -> None:
        plan = replace(bus_plan("async", workers=2, vector_envs=2, slots=slots), resume=resume)
        self.arena = arena or Arena.private(plan)
        streams, members = Streams(self.arena, ROWS), Membership(False, 2)
        self.actions: list[ev.Action] = []
        self.placement = Placement(plan, streams, members, self.actions)
        self.booking = Booking(plan, self.arena, streams, self.placement, self.actions)
        self.arena.begin_broker()
        members.hear("local", (0, 1), ())
        for index in (0, 1):
            self.placement.join(index)
            self.booking.join(index)

    def lease_out(self, *members: int) -> list[tuple[SlotRef, ...]]:
        """To whom leases go; what each has then."""
        self.booking.lease_out(set(members))
        return [tuple(self.booking.leases(index)) for index in (0, 1)]

    def seal(self, ref: SlotRef, index: int, rows: int = ROWS) -> None:
        """A segment of worker 0."""
        self.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, index), Version(0, 0), rows))
        self.arena.seal(ref)

    def forwarded(self) -> list[SlotRef]:
        return [ref for action in self.actions if isinstance(action, ev.Forward) for ref in action.refs]


def test_leases_go_to_the_poorest_first_and_only_to_members() -> None:
    desk = Desk(slots=3)
    desk.lease_out(1)
    assert [len(leases) for leases in desk.lease_out(1)] == [0, 2]
    assert [len(leases) for leases in desk.lease_out(0, 1)] == [1, 2]
    fair = Desk(slots=2)
    assert [len(leases) for leases in fair.lease_out(0, 1)] == [1, 1]
    fair.booking.leave(1)
    fair.booking.join(1)
    assert [len(leases) for leases in fair.lease_out(0, 1)] == [1, 1], "not to who was first in line"


def test_slots_that_are_freed_one_at_a_time_go_to_each_worker_in_turn() -> None:
    """A fixed order would give each of them to worker 0, and worker 1 would step nothing."""
    desk, turns = Desk(slots=1), []
    for _ in range(4):
        (turn,) = (index for index, leases in enumerate(desk.lease_out(0, 1)) if leases)
        turns.append(turn)
        desk.booking.leave(turn)
        desk.booking.join(turn)
    assert turns == [0, 1, 0, 1]


def test_what_the_dead_sealed_is_booked_and_its_slots_go_to_others() -> None:
    desk = Desk(slots=4)
    desk.placement.place()
    (first, second), _ = desk.lease_out(0, 1)
    desk.seal(first, 0, rows=3)
    desk.booking.book_all(0, dead=True)
    ledger = desk.arena.ledger()
    assert (ledger.produced, ledger.stored) == (3, 3)
    desk.placement.leave(0)
    desk.booking.leave(0)
    assert desk.forwarded() == [first]
    assert desk.arena.word(second.slot, LEASE) == second.generation + 1, "whoever wakes up writes into nothing"
    desk.booking.join(0)
    desk.placement.join(0)
    assert [ref.slot for ref in desk.lease_out(0, 1)[0]] == [second.slot], "the booked one is the learner's"


def test_only_its_holder_may_book_for_a_vector_env() -> None:
    desk = Desk()
    desk.placement.place()
    _, (foreign, _) = desk.lease_out(0, 1)
    desk.seal(foreign, 0)
    desk.booking.take_sealed(1, (foreign,))
    assert desk.forwarded() == []
    assert ev.Refuse("segment header") in desk.actions
    assert foreign not in desk.booking.leases(1)


def test_another_broker_gives_nothing_out_until_all_are_known() -> None:
    before = Desk(slots=4)
    before.placement.place()
    (first, second), _ = before.lease_out(0, 1)
    before.seal(first, 0)
    desk = Desk(before.arena)
    assert not desk.booking.is_open
    desk.booking.claim(0, (SlotRef(second.slot, second.generation + 1), SlotRef(1 << 50, 1), second))
    assert tuple(desk.booking.leases(0)) == (second,)
    desk.booking.settle()
    assert desk.booking.is_open
    assert desk.forwarded() == [first], "it lies where nobody claimed it"
    assert {ref.slot for refs in desk.lease_out(0, 1) for ref in refs} == set(range(4)) - {first.slot}
    assert second in desk.booking.leases(0)


def test_a_resumed_run_gives_nothing_out_before_the_learner_says_what_it_put_back() -> None:
    desk = Desk(resume=True)
    assert not desk.booking.is_open
    put_back = desk.arena.restore(2, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), ROWS))
    desk.booking.begin_at(500)
    assert desk.booking.is_open
    assert desk.arena.base_env_steps() == 500
    assert put_back.slot not in {ref.slot for refs in desk.lease_out(0, 1) for ref in refs}
    desk.booking.begin_at(900)
    assert desk.arena.base_env_steps() == 500
