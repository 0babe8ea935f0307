"""The ledger sees what was lost, doubled or changed, also on a stream whose holder is gone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.state import BrokerState
from zmqrl.bus_ends.worker_end import ArenaWriter
from zmqrl.shared_memory.arena import ACCEPT, LEASE, SEAL, Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import ModeName, SegmentId, SegmentMeta, SlotRef, Version

Defect = Callable[[Arena, SlotRef, SegmentMeta], None]


class OneWorker:
    """A broker, and worker 0 with vector env 0."""

    def __init__(self, mode: ModeName = "sync", remote: bool = False) -> None:
        self.plan = bus_plan(mode, workers=1, vector_envs=1)
        self.arena = Arena.private(self.plan)
        self.writer = ArenaWriter(self.arena)
        self.state = BrokerState(self.plan, self.arena)
        self.remote = remote
        self.comes(0)

    def comes(self, spawn: int, **more: object) -> None:
        host = ev.HostReported({0: spawn}, (), "local", (0,))
        worker = ev.WorkerReported(0, spawn, (), {0: 0}, remote=self.remote, **more)  # type: ignore[arg-type]
        self.state.handle_all([host, worker, host])

    def lease(self) -> SlotRef:
        leases = self.state.snapshot(0).leases  # type: ignore[union-attr]
        return next(ref for ref in leases if self.arena.word(ref.slot, SEAL) < ref.generation)

    def seal(self, index: int, rows: int = ROWS) -> SlotRef:
        ref = self.lease()
        self.writer.seal(ref, SegmentMeta(SegmentId(0, 0, index), Version(0, index), rows))
        return ref

    def accept(self, index: int, rows: int = ROWS) -> SlotRef:
        ref = self.seal(index, rows)
        self.state.handle(ev.Sealed(0, 0, (ref,)))
        return ref

    def delivers(self, index: int, rows: int = ROWS, ref: SlotRef | None = None) -> SlotRef:
        """A whole segment of incarnation 0; again, when it was sent into the slot `ref` before."""
        columns = {c.name: np.zeros(c.shape, c.dtype) for c in self.plan.columns}
        meta, ref = SegmentMeta(SegmentId(0, 0, index), Version(0, index), rows), ref or self.lease()
        self.state.handle(ev.Delivered(0, 0, ref, meta, columns))
        return ref

    def reports(self, *open_rows: tuple[int, int]) -> None:
        rows = [(0, index, rows) for index, rows in open_rows]
        self.state.handle(ev.WorkerReported(0, 0, (), {0: 0}, remote=True, open_rows=rows))


def test_a_count_that_nothing_accounts_for_is_unknown_once_its_worker_is_dead() -> None:
    arena = Arena.private(bus_plan())
    ledger = StreamLedger(arena, ROWS)
    ledger.hand_over(0, 0, 0)
    arena.streams.write_producer(0, ProducerRecord(0, 99, 800))
    assert not arena.ledger().balanced
    ledger.close_stream(0)
    ledger = arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.dropped["unknown"]) == (800, 0, 800)
    assert not ledger.balanced


def skip(arena: Arena, ref: SlotRef, meta: SegmentMeta) -> None:
    """Acknowledged, and never stored."""
    record = arena.streams.read(0)
    record.next_index += 1
    arena.streams.write(0, record)
    arena.accept(ref)


def double(arena: Arena, ref: SlotRef, meta: SegmentMeta) -> None:
    record = arena.streams.read(0)
    record.next_index, record.stored = record.next_index + 1, record.stored + 2 * meta.rows
    arena.streams.write(0, record)
    arena.accept(ref)


def fewer(arena: Arena, ref: SlotRef, meta: SegmentMeta) -> None:
    """The header is another than its worker wrote."""
    arena.write_meta(ref.slot, SegmentMeta(meta.id, meta.version, meta.rows - 3))


def more(arena: Arena, ref: SlotRef, meta: SegmentMeta) -> None:
    arena.write_meta(ref.slot, SegmentMeta(meta.id, meta.version, meta.rows + 1))


@pytest.mark.parametrize(
    ("defect", "unknown", "overbooked"), [(skip, 5, 0), (double, 0, 5), (fewer, 3, 0), (more, 0, 1)]
)
def test_a_planted_defect_ends_the_balance(defect: Defect, unknown: int, overbooked: int) -> None:
    bus = OneWorker()
    bus.accept(0)
    ref = bus.seal(1, rows=5)
    defect(bus.arena, ref, bus.arena.meta(ref.slot))
    bus.state = BrokerState(bus.plan, bus.arena)  # it finds what the one before did
    bus.state.handle(ev.WorkerReported(0, 0, (ref,), {0: 0}, bus.state.incarnation))
    bus.state.handle(ev.HostReported({0: 0}, (), "local", (0,)))
    bus.state.handle(ev.Sealed(0, 0, (ref,)))
    ledger = bus.arena.ledger()
    while_alive = ledger.stored + ledger.in_flight + sum(ledger.dropped.values())
    assert ledger.produced == ROWS + 5 != while_alive and not ledger.balanced
    bus.state.handle(ev.HostReported({}, (), "local", (0,)))
    ledger = bus.arena.ledger()
    assert (ledger.dropped["unknown"], ledger.overbooked) == (unknown, overbooked)
    assert ledger.produced == ROWS + 5 and not ledger.balanced


class BrokerDied(Exception):
    """SIGKILL before a store into a slot."""


def dies(*_: object) -> None:
    raise BrokerDied


@pytest.mark.parametrize("is_new", [True, False], ids=["accepted", "refused"])
def test_what_a_record_has_and_its_slot_lacks_is_completed_by_the_next_broker(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena.private(bus_plan())
    ledger = StreamLedger(arena, ROWS)
    ledger.hand_over(0, 0, 0)
    first, second = arena.lease(0), arena.lease(1)
    for ref, index in ((first, 0), (second, 1 if is_new else 0)):
        arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, index), Version(0, 0), ROWS))
        arena.seal(ref)
    assert ledger.accept(first, arena.meta(0), complete=True)
    with monkeypatch.context() as patch:
        patch.setattr(arena, "accept" if is_new else "lease", dies)
        with pytest.raises(BrokerDied):
            ledger.accept(second, arena.meta(1), complete=True)
    assert arena.sealed() == [second]
    before = arena.streams.read(0)
    after = StreamLedger(arena, ROWS)
    assert arena.sealed() == [] and after.records[0] == before and after.stored == ledger.stored
    assert arena.word(1, ACCEPT) == (second.generation if is_new else 0)
    assert arena.word(1, LEASE) == second.generation + (not is_new), "a slot that was refused is taken back"


def test_a_slot_is_sealed_until_it_is_accepted_or_taken_back() -> None:
    arena = Arena.private(bus_plan())
    ledger = StreamLedger(arena, ROWS)
    first, second = arena.lease(0), arena.lease(1)
    found = []
    for store in (lambda: None, lambda: arena.seal(first), lambda: arena.accept(first), lambda: arena.lease(0)):
        store()
        found.append(ledger.is_sealed(first))
    arena.seal(second)
    arena.lease(1)
    assert [*found, ledger.is_sealed(second)] == [False, True, False, False, False]


def test_a_segment_is_late_when_its_position_was_accepted_or_has_passed_to_a_successor() -> None:
    ledger = StreamLedger(Arena.private(bus_plan()), ROWS)
    ledger.hand_over(0, 2, 5)
    late = [(1, 4), (1, 9), (2, 4), (2, 5), (2, 9), (3, 0)]
    metas = [SegmentMeta(SegmentId(0, *at), Version(0, 0), ROWS) for at in late]
    assert [ledger.is_late(meta) for meta in metas] == [True, True, True, False, False, False]


def test_one_streams_loss_does_not_hide_anothers_surplus() -> None:
    arena = Arena.private(bus_plan())
    ledger = StreamLedger(arena, ROWS)
    for vector_env, stored in ((0, 3), (1, 13)):
        ledger.hand_over(vector_env, 0, 0)
        arena.streams.write_producer(vector_env, ProducerRecord(0, 0, 8))
        record = ledger.records[vector_env]
        record.next_index, record.stored = 1, stored
        arena.streams.write(vector_env, record)
    ledger = arena.ledger()
    assert ledger.produced == ledger.stored == 16 and ledger.overbooked == 5
    assert not ledger.balanced


def test_a_worker_that_died_before_it_counted_a_segment_is_completed_from_its_header() -> None:
    bus = OneWorker()
    ref = bus.lease()
    bus.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 5))
    bus.arena.streams.write_open(0, 0, 5)
    bus.arena.seal(ref)
    bus.state.handle(ev.WorkerReported(0, 0, (ref,), {0: 0}))
    assert bus.arena.ledger().stored == 0, "it lives: it is about to count it itself"
    bus.state.handle(ev.HostReported({}, (), "local", (0,)))
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.balanced) == (5, 5, True)
    assert bus.arena.streams.read_producer(0) == ProducerRecord(), "the worker's word is the worker's"


def test_a_sealed_segment_that_is_never_accepted_is_counted_once() -> None:
    """Its header is not one of this run; its worker had counted it, and not stepped the next one yet."""
    bus = OneWorker()
    bus.arena.streams.write_open(0, 0, ROWS)
    ref = bus.seal(0)
    bus.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), ROWS + 1))
    bus.state.handle(ev.Sealed(0, 0, (ref,)))
    bus.state.handle(ev.HostReported({}, (), "local", (0,)))
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored) == (ROWS, 0) and not ledger.balanced
    assert {reason: rows for reason, rows in ledger.dropped.items() if rows} == {"unknown": ROWS}


def test_remote_segments_are_counted_in_the_order_of_their_acceptance() -> None:
    bus = OneWorker("async", remote=True)
    second = bus.delivers(1)
    bus.delivers(0)
    bus.delivers(1, ref=second)
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.balanced) == (2 * ROWS, 2 * ROWS, True)
    assert bus.arena.streams.read(0).segments == 2
    bus.state.handle(ev.WorkerExited(0, 0))
    assert bus.arena.ledger() == ledger


def test_a_remote_segment_behind_a_gap_is_dropped_with_its_worker() -> None:
    bus = OneWorker("async", remote=True)
    bus.delivers(1, rows=5)
    bus.state.handle(ev.WorkerExited(0, 0))
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.dropped["unsealed"], ledger.balanced) == (5, 5, True)


def test_a_late_segment_leaves_unsealed_and_enters_superseded() -> None:
    """Its worker was silent for too long; the segment comes after a successor has taken its vector env up."""
    bus = OneWorker("async", remote=True)
    bus.delivers(0)
    bus.reports((1, ROWS), (2, 3))
    bus.state.handle(ev.WorkerSilent(0, 0))
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.dropped["unsealed"], ledger.balanced) == (2 * ROWS + 3, ROWS + 3, True)
    bus.reports()
    for _ in range(2):
        bus.delivers(1)
    ledger = bus.arena.ledger()
    assert (ledger.dropped["unsealed"], ledger.dropped["superseded"]) == (3, ROWS)
    assert (ledger.produced, ledger.duplicates_refused, ledger.balanced) == (2 * ROWS + 3, 1, True)
    bus.delivers(2)  # it went on stepping after its last report
    ledger = bus.arena.ledger()
    assert (ledger.dropped["unsealed"], ledger.dropped["superseded"]) == (0, 2 * ROWS)
    assert (ledger.produced, ledger.stored, ledger.balanced) == (3 * ROWS, ROWS, True)
    assert bus.lease(), "the slots come back"


def test_an_accepted_segment_sent_again_is_counted_as_duplicate_only() -> None:
    bus = OneWorker("async", remote=True)
    bus.delivers(0)
    bus.delivers(0)
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.duplicates_refused, ledger.balanced) == (ROWS, ROWS, 1, True)


def test_a_late_segment_changes_no_word_of_the_local_worker_that_has_the_vector_env_now() -> None:
    bus = OneWorker("async", remote=True)
    bus.reports((0, ROWS))
    bus.state.handle(ev.WorkerSilent(0, 0))
    bus.remote = False
    bus.comes(1)
    order = bus.state.snapshot(0).assignments[0]  # type: ignore[union-attr, index]
    writer, ref = ArenaWriter(bus.arena), bus.lease()
    writer.seal(ref, SegmentMeta(SegmentId(0, order.incarnation, 0), Version(0, 0), ROWS))
    writer.open_rows(0, 1, 2)
    before = bus.arena.streams.read_producer(0), bus.arena.streams.read_open(0)
    bus.state._ledger.refuse_late(SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), ROWS))
    assert (bus.arena.streams.read_producer(0), bus.arena.streams.read_open(0)) == before
    bus.state.handle(ev.Sealed(0, 1, (ref,)))
    bus.state.handle(ev.WorkerExited(0, 1))
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.balanced) == (2 * ROWS + 2, ROWS, True)
    assert (ledger.dropped["superseded"], ledger.dropped["unsealed"]) == (ROWS, 2)


def test_what_a_remote_worker_did_not_deliver_is_counted_when_the_broker_ends() -> None:
    bus = OneWorker("async", remote=True)
    bus.delivers(0)
    bus.reports((1, ROWS), (2, 3))
    bus.state.accept_all_sealed()
    ledger = bus.arena.ledger()
    assert (ledger.produced, ledger.dropped["unsealed"], ledger.balanced) == (2 * ROWS + 3, ROWS + 3, True)
