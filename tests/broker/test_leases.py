"""Slots given to workers and taken back, asked of the class that does it."""

from __future__ import annotations

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.acceptance import Acceptance
from zmqrl.broker.assignment import Assignment
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.codec import replace
from zmqrl.config.sections import ReplaySection
from zmqrl.shared_memory.arena import LEASE, Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version


class Leasing:
    """Bookings of async workers 0 and 1; each has its vector env."""

    def __init__(
        self, arena: Arena | None = None, slots: int = 8, resume: bool = False, replay: ReplaySection | None = None
    ) -> None:
        """`replay`: of an off-policy run."""
        plan = replace(bus_plan("async", workers=2, vector_envs=2, slots=slots), resume=resume)
        if replay is not None:
            plan = replace(plan, on_policy=False, config=replace(plan.config, replay=replay))
        self.arena = arena or Arena.private(plan)
        ledger, self.workers = StreamLedger(self.arena, ROWS), Workers(2)
        self.ledger = ledger
        first = self.arena.begin_broker() == 1
        self.actions: list[ev.Action] = []
        self.assignment = Assignment(plan, ledger, self.workers)
        self.acceptance = Acceptance(plan, self.arena, ledger, self.assignment, self.workers, first)
        self.workers.receive("local", (0, 1), ())
        for index in (0, 1):
            self.join(index)

    def lease_out(self, *members: int) -> list[tuple[SlotRef, ...]]:
        """To whom leases go; what each has then."""
        self.workers.receive("local", members, ())
        self.acceptance.lease_out()
        return [self.leases(index) for index in (0, 1)]

    def leases(self, index: int) -> tuple[SlotRef, ...]:
        return tuple(self.process(index).leases.values())

    def join(self, index: int) -> None:
        self.assignment.claim(self.workers.add(index, 0), {})

    def leave(self, index: int) -> None:
        process = self.process(index)
        self.assignment.remove(process)
        self.acceptance.revoke_leases(process)
        self.workers.remove(process)

    def process(self, index: int) -> WorkerProcess:
        process = self.workers.process(index)
        assert process is not None
        return process

    def seal(self, ref: SlotRef, index: int, rows: int = ROWS) -> None:
        """A segment of worker 0."""
        self.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, index), Version(0, 0), rows))
        self.arena.seal(ref)

    def forwarded(self) -> list[SlotRef]:
        return [ref for action in self.actions if isinstance(action, ev.Forward) for ref in action.refs]


def test_leases_go_to_the_poorest_first_and_only_to_members() -> None:
    leasing = Leasing(slots=3)
    leasing.lease_out(1)
    assert [len(leases) for leases in leasing.lease_out(1)] == [0, 2]
    assert [len(leases) for leases in leasing.lease_out(0, 1)] == [1, 2]
    fair = Leasing(slots=2)
    assert [len(leases) for leases in fair.lease_out(0, 1)] == [1, 1]
    fair.leave(1)
    fair.join(1)
    assert [len(leases) for leases in fair.lease_out(0, 1)] == [1, 1], "not to who was first in line"


def test_slots_that_are_freed_one_at_a_time_go_to_each_worker_in_turn() -> None:
    """A fixed order would give each of them to worker 0, and worker 1 would step nothing."""
    leasing, turns = Leasing(slots=1), []
    for _ in range(4):
        (turn,) = (index for index, leases in enumerate(leasing.lease_out(0, 1)) if leases)
        turns.append(turn)
        leasing.leave(turn)
        leasing.join(turn)
    assert turns == [0, 1, 0, 1]


def test_slots_that_are_released_in_another_order_are_found_once_the_learner_reports() -> None:
    """Where nothing is free: else the oldest one is looked at alone."""
    leasing = Leasing(slots=4)
    leasing.assignment.place()
    (first, second), _ = leasing.lease_out(0, 1)
    for index, ref in enumerate((first, second)):
        leasing.seal(ref, index)
    leasing.arena.streams.write_producer(0, ProducerRecord(0, 1, 2 * ROWS))
    leasing.acceptance.take_sealed(leasing.process(0), (first, second))
    assert leasing.lease_out(0, 1)[0] == ()
    leasing.arena.release(second)
    assert leasing.lease_out(0, 1)[0] == ()
    leasing.acceptance.report_progress(0, 0)
    assert [ref.slot for ref in leasing.lease_out(0, 1)[0]] == [second.slot]
    leasing.arena.release(first)
    assert [ref.slot for ref in leasing.lease_out(0, 1)[0]] == [second.slot, first.slot], "the oldest is found at once"


def test_segments_of_a_dead_worker_are_accepted_and_its_slots_reused() -> None:
    leasing = Leasing(slots=4)
    leasing.assignment.place()
    (first, second), _ = leasing.lease_out(0, 1)
    leasing.seal(first, 0, rows=3)
    leasing.actions += leasing.acceptance.take_all_of(leasing.process(0), dead=True)
    ledger = leasing.arena.ledger()
    assert (ledger.produced, ledger.stored) == (3, 3)
    leasing.leave(0)
    assert leasing.forwarded() == [first]
    assert leasing.arena.word(second.slot, LEASE) == second.generation + 1, "whoever wakes up writes into nothing"
    leasing.join(0)
    assert [ref.slot for ref in leasing.lease_out(0, 1)[0]] == [second.slot], "the accepted one is the learner's"


def test_only_segments_of_the_assigned_worker_are_accepted() -> None:
    leasing = Leasing()
    leasing.assignment.place()
    _, (foreign, _) = leasing.lease_out(0, 1)
    leasing.seal(foreign, 0)
    leasing.actions += leasing.acceptance.take_sealed(leasing.process(1), (foreign,))
    assert leasing.forwarded() == []
    assert ev.Refuse("segment header") in leasing.actions
    assert foreign not in leasing.leases(1)


def test_another_broker_gives_nothing_out_until_all_are_known() -> None:
    before = Leasing(slots=4)
    before.assignment.place()
    (first, second), _ = before.lease_out(0, 1)
    before.seal(first, 0)
    leasing = Leasing(before.arena)
    assert not leasing.acceptance.is_open
    leasing.acceptance.claim(
        leasing.process(0), (SlotRef(second.slot, second.generation + 1), SlotRef(1 << 50, 1), second)
    )
    assert leasing.leases(0) == (second,)
    leasing.actions += leasing.acceptance.finish_recovery()
    assert leasing.acceptance.is_open
    assert leasing.forwarded() == [first], "it lies where nobody claimed it"
    assert {ref.slot for refs in leasing.lease_out(0, 1) for ref in refs} == set(range(4)) - {first.slot}
    assert second in leasing.leases(0)


def test_a_run_from_the_beginning_had_nothing_before_its_arena() -> None:
    leasing = Leasing()
    leasing.acceptance.begin_at(500)
    assert leasing.arena.base_env_steps() == 0


def test_off_policy_leases_wait_for_updates_with_what_was_stored_before_and_in_this_arena() -> None:
    """So many rows ahead of the updates: 4 segments."""
    replay = ReplaySection(ratio=1.0, learning_starts=0, slack=4 * ROWS)
    leased = []
    for base, stored, updates in ((0, 0, 0), (0, 4, 0), (0, 4, 1), (3, 0, 0), (2, 1, 0)):
        leasing = Leasing(resume=True, replay=replay)
        leasing.acceptance.begin_at(base * ROWS)
        leasing.ledger.stored = stored * ROWS
        leasing.acceptance.report_progress(0, updates * ROWS)
        leased.append(sum(map(len, leasing.lease_out(0, 1))))
    assert leased == [4, 0, 1, 1, 1]


def test_a_resumed_run_leases_nothing_before_the_learner_reports_its_replay() -> None:
    leasing = Leasing(resume=True)
    assert not leasing.acceptance.is_open
    put_back = leasing.arena.restore(2, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), ROWS))
    leasing.acceptance.begin_at(500)
    assert leasing.acceptance.is_open
    assert leasing.arena.base_env_steps() == 500
    assert put_back.slot not in {ref.slot for refs in leasing.lease_out(0, 1) for ref in refs}
    leasing.acceptance.begin_at(900)
    assert leasing.arena.base_env_steps() == 500
