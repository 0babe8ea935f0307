"""Who holds which vector env, asked of the class that decides it: no slots, no leases, no processes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.assignment import Assignment
from zmqrl.broker.events import RESUMED_SHIFT, Handover, HandoverRequest
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.codec import replace
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Mode, SlotRef, Version


class Placed:
    """A placement with the stream records that it writes into, and the members that it requests."""

    def __init__(self, mode: Mode = "sync", resume: bool = False, arena: Arena | None = None) -> None:
        self.plan = replace(bus_plan(mode, workers=2, vector_envs=2), resume=resume)
        self.arena = arena or Arena.private(self.plan)
        self.ledger, self.workers = StreamLedger(self.arena, ROWS), Workers(2)
        self.actions: list[ev.Action] = []
        self.assignment = Assignment(self.plan, self.ledger, self.workers)

    def hold(self, *indexes: int) -> None:
        """The only host's word of its workers."""
        self.workers.receive("local", indexes, ())
        self.assignment.review()
        self.place()

    def join(self, index: int) -> None:
        self.assignment.claim(self.workers.add(index, 0), {})
        self.place()

    def place(self) -> None:
        self.actions += self.assignment.place()

    def announce(self, version: Version, back: tuple[int, ...] | None) -> None:
        self.actions += self.assignment.announce(version, back)

    def leave(self, index: int) -> None:
        process = self.process(index)
        self.assignment.remove(process)
        self.workers.remove(process)

    def process(self, index: int) -> WorkerProcess:
        process = self.workers.process(index)
        assert process is not None
        return process

    def says(self, index: int, streams: Mapping[int, int], serial: int) -> bool:
        return self.assignment.receive(self.process(index), ev.WorkerReported(index, 0, (), streams, serial=serial))

    def assigned(self, index: int) -> dict[int, tuple[int, int]]:
        """Vector env to (incarnation, next index)."""
        snapshot = self.assignment.snapshot(self.process(index), False)
        return {o.vector_env: (o.incarnation, o.next_index) for o in snapshot.assignments or ()}

    def fill(self, vector_env: int, segments: int) -> None:
        """So many segments of one row each were accepted."""
        record = self.ledger.records[vector_env]
        record.next_index, record.stored = record.next_index + segments, record.stored + segments
        self.arena.streams.write(vector_env, record)


@pytest.fixture
def placed() -> Placed:
    """Worker 0 steps both vector envs; worker 1 is not there."""
    made = Placed()
    made.hold(0)
    made.join(0)
    assert made.assigned(0) == {0: (0, 0), 1: (0, 0)}
    return made


def test_nothing_is_given_out_before_min_workers_are_there() -> None:
    placed = Placed()
    placed.assignment = Assignment(
        replace(placed.plan, config=replace(placed.plan.config, min_workers=2)), placed.ledger, placed.workers
    )
    placed.hold(0, 1)
    placed.join(0)
    assert not placed.assignment.holders
    placed.join(1)
    assert placed.assignment.holders == {0: 0, 1: 1}
    placed.leave(1)
    placed.hold(0)
    assert placed.assignment.requests == [HandoverRequest(1, 1, 0)], "the run has begun: fewer may go on"


def test_one_that_moves_has_its_old_holder_until_that_has_stopped(placed: Placed) -> None:
    placed.actions.clear()
    placed.hold(0, 1)
    assert placed.actions == [ev.Reply(0)], "at once"
    placed.join(1)
    assert placed.actions == [ev.Reply(0)], "and once"
    assert placed.assigned(0) == {0: (0, 0)}
    assert placed.assignment.holders == {0: 0, 1: 0}
    serial = placed.assignment.snapshot(placed.process(0), False).serial
    assert not placed.says(0, {0: 0, 1: 0}, serial - 1), "it does not know yet"
    assert placed.says(0, {0: 0, 1: 0}, serial)
    placed.assignment.release_stopped(placed.process(0))
    assert placed.assignment.holders == {0: 0, 1: 0}, "it has unaccepted segments"
    assert placed.says(0, {0: 0}, serial)
    placed.assignment.release_stopped(placed.process(0))
    assert placed.assignment.holders == {0: 0}
    placed.place()
    assert placed.assignment.requests == [HandoverRequest(1, 1, 0)]
    assert placed.actions[-1] == ev.RequestHandovers()


def test_assignments_are_repeated_until_applied(placed: Placed) -> None:
    idle = placed.workers.add(1, 0)
    assert placed.assignment.snapshot(idle, False).assignments == (), "that it has none is reported too"
    serial = placed.assignment.snapshot(placed.process(0), False).serial
    placed.says(0, {}, serial - 1)
    assert placed.assignment.snapshot(placed.process(0), False).assignments is not None
    placed.says(0, {0: 0, 1: 0}, serial)
    assert placed.assignment.snapshot(placed.process(0), False).assignments is None


def test_a_vector_env_that_the_run_does_not_have_is_ignored(placed: Placed) -> None:
    placed.says(0, {0: 0, 1: 0, 2: 0, 77: 0}, 0)
    assert placed.assignment.snapshot(placed.process(0), False).acked == {0: (0, 0), 1: (0, 0)}


def test_a_successor_continues_where_the_learner_reports(placed: Placed) -> None:
    placed.fill(1, 3)
    placed.arena.streams.write_open(1, 3, 5)
    placed.leave(0)
    assert placed.assignment.holders == {}
    assert placed.arena.ledger().dropped["unsealed"] == 5
    placed.join(0)
    assert placed.assignment.requests == [HandoverRequest(0, 1, 0), HandoverRequest(1, 1, 3)]
    placed.assignment.answer(Handover(1, 0, 3, ()))
    assert placed.assigned(0) == {}, "an answer to an older request"
    placed.assignment.answer(Handover(1, 1, 3, ()))
    assert placed.assigned(0) == {1: (1, 3)}
    assert placed.assignment.requests == [HandoverRequest(0, 1, 0)]


def test_async_a_successor_begins_at_once() -> None:
    placed = Placed("async")
    placed.hold(0)
    placed.join(0)
    placed.fill(0, 3)
    placed.leave(0)
    placed.join(0)
    assert placed.assigned(0) == {0: (1, 0)}
    assert not placed.assignment.requests


def test_due_is_what_the_version_still_lacks(placed: Placed) -> None:
    assert placed.assignment.due.of(placed.process(0)) == 2
    placed.fill(0, 1)
    assert placed.assignment.due.of(placed.process(0)) == 1
    placed.announce(Version(0, 1), None)
    assert placed.assignment.due.of(placed.process(0)) == 2


def test_leases_beyond_the_vector_envs_that_are_due_are_spare(placed: Placed) -> None:
    process = placed.process(0)
    spare = []
    for count in range(5):
        process.leases = {slot: SlotRef(slot, 1) for slot in range(count)}
        spare.append(placed.assignment.due.spare_leases())
    assert spare == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(("workers", "most"), [(0, 2), (1, 2), (3, 6)])
def test_so_many_leases_may_be_spare_as_the_workers_of_the_start_had(workers: int, most: int) -> None:
    plan = bus_plan("sync", workers=workers, leases=2)
    assert Assignment(plan, StreamLedger(Arena.private(plan), ROWS), Workers(2)).due.most_spare == most


def test_going_back_takes_all_off_and_opens_their_positions_again(placed: Placed) -> None:
    for vector_env in (0, 1):
        placed.fill(vector_env, 3)
    placed.announce(Version(2, 1), (1, 1))
    placed.place()
    assert placed.assigned(0) == {}
    assert placed.assignment.holders == {0: 0, 1: 0}
    assert placed.says(0, {}, placed.assignment.snapshot(placed.process(0), False).serial)
    placed.assignment.release_stopped(placed.process(0))
    placed.place()
    first = (2 << RESUMED_SHIFT) + 1
    assert placed.assignment.requests == [HandoverRequest(0, first, 1), HandoverRequest(1, first, 1)]
    ledger = placed.arena.ledger()
    assert (ledger.stored, ledger.dropped["rolled_back"]) == (2, 4)


def test_going_back_beyond_what_was_stored_ends_the_run(placed: Placed) -> None:
    placed.announce(Version(2, 1), (1, 1))
    placed.leave(0)
    placed.join(0)
    assert [a.cause for a in placed.actions if isinstance(a, ev.Fail)] == [
        f"the learner rolled back to version {Version(2, 1)}, newer than the stored rows"
    ] * 2
    assert not placed.assignment.requests


def test_an_older_version_without_its_rows_ends_the_run(placed: Placed) -> None:
    placed.fill(0, 3)
    placed.announce(Version(1, 2), None)
    assert not [a for a in placed.actions if isinstance(a, ev.Fail)]
    placed.announce(Version(2, 1), None)
    assert len([a for a in placed.actions if isinstance(a, ev.Fail)]) == 1


def test_pipelined_has_two_rounds_due_and_none_beyond() -> None:
    """What is accepted two rounds before the broker reads the announcement is not taken for a rollback."""
    made = Placed("pipelined")
    made.hold(0)
    made.join(0)
    assert made.assignment.due.of(made.process(0)) == 4
    made.fill(0, 2)
    assert made.assignment.due.of(made.process(0)) == 2
    made.fill(1, 1)
    made.announce(Version(0, 1), None)
    assert made.assignment.due.of(made.process(0)) == 3
    made.fill(0, 1)
    made.announce(Version(1, 1), None)
    assert not [a for a in made.actions if isinstance(a, ev.Fail)]
    made.fill(0, 1)
    made.announce(Version(2, 1), None)
    assert len([a for a in made.actions if isinstance(a, ev.Fail)]) == 1


def test_rows_of_another_number_of_vector_envs_are_refused(placed: Placed) -> None:
    placed.announce(Version(2, 0), (0, 0, 0))
    placed.place()
    assert placed.actions[-1] == ev.Refuse("value")
    assert placed.assigned(0) == {0: (0, 0), 1: (0, 0)}


def test_only_the_incarnation_that_is_open_can_be_claimed(placed: Placed) -> None:
    placed.ledger.close_stream(1)
    after = Placed(arena=placed.arena)
    worker = after.workers.add(1, 0)
    after.assignment.claim(worker, {0: 1, 1: 0, 77: 0})
    assert after.assignment.holders == {}
    after.assignment.claim(worker, {0: 0})
    assert after.assignment.holders == {0: 1}
    after.assignment.claim(after.workers.add(0, 0), {0: 0})
    assert after.assignment.holders == {0: 1}, "the first who claims it has it"


def test_a_resumed_run_waits_for_the_learner_and_begins_under_its_incarnation() -> None:
    placed = Placed(resume=True)
    placed.hold(0)
    placed.join(0)
    assert not placed.assignment.requests
    placed.announce(Version(3, 7), None)
    placed.place()
    first = 3 << RESUMED_SHIFT
    assert placed.assignment.requests == [HandoverRequest(0, first, 0), HandoverRequest(1, first, 0)]
