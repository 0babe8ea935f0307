"""Acceptance by the id in a slot's header: in order, once, and never for a stream that is not the worker's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.state import BrokerState
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version

PLAN = bus_plan("sync", workers=2, vector_envs=2, slots=8)
HELLO = ev.WorkerReported(0, 0, (), {})


class Bus:
    """A state whose worker 0 steps vector env 0."""

    def __init__(self, plan: RunPlan = PLAN, trained: int = 0) -> None:
        self.arena = Arena.private(plan)
        self.state = BrokerState(plan, self.arena)
        self.state.handle(ev.HostReported({}, (), "local", (0, 1)))
        self.state.handle(ev.LearnerReported(trained, 0))
        self.state.handle(HELLO)

    def leases(self) -> Sequence[SlotRef]:
        snapshot = self.state.snapshot(0)
        assert snapshot is not None
        return snapshot.leases

    def seal(self, ref: SlotRef, id: SegmentId, rows: int = 8) -> None:
        self.arena.write_meta(ref.slot, SegmentMeta(id, Version(0, 0), rows))
        self.arena.seal(ref)
        before = self.arena.streams.read_producer(0)
        index = max(before.sealed_index, id.index)
        self.arena.streams.write_producer(0, ProducerRecord(id.incarnation, index, before.produced + rows))

    def push(self, *refs: SlotRef) -> list[SlotRef]:
        """What the learner receives."""
        actions = self.state.handle(ev.Sealed(0, 0, refs))
        return [ref for action in actions if isinstance(action, ev.Forward) for ref in action.refs]


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_a_descriptor_that_comes_first_waits_for_nothing_lost(bus: Bus) -> None:
    first, second = bus.leases()
    bus.seal(first, SegmentId(0, 0, 0))
    bus.seal(second, SegmentId(0, 0, 1))
    assert bus.push(second) == [first, second], "the lost descriptor of the first is not waited for"
    assert bus.push(first, second) == []
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.duplicates_refused, ledger.balanced) == (16, 2, True)


def test_a_gap_is_not_booked_over(bus: Bus) -> None:
    first, second = bus.leases()
    bus.seal(second, SegmentId(0, 0, 1))
    assert bus.push(second) == []
    assert bus.arena.sealed() == [second]
    bus.seal(first, SegmentId(0, 0, 0))
    assert bus.push(first, second) == [first, second]


def test_a_segment_waits_until_its_worker_has_counted_it(bus: Bus) -> None:
    """Its descriptor is sent after that, so it is one of a former life of the slot, or forged."""
    ref = bus.leases()[0]
    bus.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 8))
    bus.arena.seal(ref)
    assert bus.push(ref) == [] and bus.arena.sealed() == [ref]
    bus.arena.streams.write_producer(0, ProducerRecord(0, 0, 8))
    assert bus.push(ref) == [ref]


def test_a_second_fill_of_a_position_is_superseded_and_its_slot_comes_back(bus: Bus) -> None:
    first, second = bus.leases()
    bus.seal(first, SegmentId(0, 0, 0))
    bus.seal(second, SegmentId(0, 0, 0), rows=5)
    assert bus.push(first) == [first]
    assert ev.Dropped(SegmentId(0, 0, 0), 5, "superseded") in bus.state.handle(ev.Sealed(0, 0, (second,)))
    ledger = bus.arena.ledger()
    assert (ledger.stored, ledger.dropped["superseded"], ledger.balanced) == (8, 5, True)
    assert not bus.arena.is_held(second)
    assert len(bus.leases()) == 2


@pytest.mark.parametrize(
    "id", [SegmentId(1, 0, 0), SegmentId(99, 0, 0), SegmentId(-1, 0, 0), SegmentId(0, 0, -1), SegmentId(0, 0, 1 << 60)]
)
def test_a_header_that_cannot_be_this_workers_is_refused(bus: Bus, id: SegmentId) -> None:
    ref = bus.leases()[0]
    bus.arena.write_meta(ref.slot, SegmentMeta(id, Version(0, 0), 8))
    bus.arena.seal(ref)
    assert bus.push(ref) == []
    assert bus.arena.ledger().stored == 0
    assert len(bus.leases()) == 2


def test_descriptors_of_unknown_and_dead_workers_change_nothing(bus: Bus) -> None:
    ref = bus.leases()[0]
    bus.seal(ref, SegmentId(0, 0, 0))
    for index, spawn in ((0, 1), (1, 0), (77, 0)):
        assert bus.state.handle(ev.Sealed(index, spawn, (ref,))) == []
    assert bus.push(SlotRef(ref.slot, ref.generation + 1), SlotRef(1 << 50, 1), SlotRef(-1, 1)) == []
    assert bus.arena.ledger().stored == 0
    assert bus.push(ref) == [ref]


def test_a_whole_segment_of_a_worker_that_sees_the_arena_is_not_taken(bus: Bus) -> None:
    """It writes into the slot itself."""
    ref = bus.leases()[0]
    columns = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in PLAN.columns}
    meta = SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 8)
    for index in (0, 1):
        assert bus.state.handle(ev.Delivered(index, 0, ref, meta, columns)) == []
    assert bus.arena.ledger().stored == 0 and ref in bus.leases()


def test_a_released_slot_is_leased_under_a_new_generation(bus: Bus) -> None:
    ref = bus.leases()[0]
    bus.seal(ref, SegmentId(0, 0, 0))
    bus.push(ref)
    bus.arena.release(ref)
    seen = set()
    for index in range(1, 12):
        bus.state.handle(ev.LearnerReported(0, 0))
        ref = bus.leases()[0]
        seen.add(ref)
        bus.seal(ref, SegmentId(0, 0, index))
        bus.push(ref)
        bus.arena.release(ref)
    assert max(ref.generation for ref in seen) > 1
    assert len(seen) == 11


def test_near_the_end_of_async_no_more_is_leased_than_the_last_batch_needs() -> None:
    """On-policy, 8 rows a segment and 2 segments a batch; after 96 of 100 env steps one batch is needed."""
    plan = bus_plan("async", workers=1, vector_envs=2, slots=8, leases=4)
    run = replace(plan.config.run, total_env_steps=100)
    bus = Bus(replace(plan, config=replace(plan.config, run=run)), trained=96)
    first, second = bus.leases()
    bus.seal(first, SegmentId(0, 0, 0), rows=1)
    bus.push(first)
    assert bus.leases() == (second,), "the first counts until the learner releases it"
    bus.state.handle(ev.LearnerReported(0, 0))
    assert len(bus.leases()) == 4, "a learner that continues from a full checkpoint needs more"


def test_a_lease_accepted_and_released_is_not_claimed_from_the_next_broker(bus: Bus) -> None:
    """The worker has not received the acceptance: writing into that life of the slot again would never be accepted."""
    ref = bus.leases()[0]
    bus.seal(ref, SegmentId(0, 0, 0))
    bus.push(ref)
    bus.arena.release(ref)
    bus.state = BrokerState(PLAN, bus.arena)
    bus.state.handle(ev.WorkerReported(0, 0, (ref,), {0: 0}, bus.state.incarnation))
    bus.state.handle(ev.HostReported({0: 0}, (), "local", (0,)))
    assert ref not in bus.leases()


def test_a_lease_that_is_not_a_slot_is_not_claimed(bus: Bus) -> None:
    bus.state = BrokerState(PLAN, bus.arena)
    nonsense = (SlotRef(1 << 50, 1), SlotRef(99, 1))
    bus.state.handle(ev.WorkerReported(0, 0, nonsense, {}, bus.state.incarnation))
    assert not set(nonsense) & set(bus.leases())
