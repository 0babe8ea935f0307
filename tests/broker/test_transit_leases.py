"""Leases of workers of other hosts beyond `leases_per_worker`, for segments on their way to the broker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.shared_memory.bus_plans import COLUMNS, ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker import leases
from zmqrl.broker.leases import transit_leases
from zmqrl.broker.state import BrokerState
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import ReplaySection
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import ModeName, Notice, SegmentId, SegmentMeta, SlotRef, Version

NEAR, FAR, LEASES = (0,), (1, 2, 3), 2
WORKERS = len(NEAR) + len(FAR)
MOST_OF_ONE = 7
"""Segments that a stream has a word for, the open one excluded."""
COLUMN_VALUES = {c.name: np.ones(c.shape, c.dtype) for c in COLUMNS}


def plan_of(batch: int, mode: ModeName = "async", replay: ReplaySection | None = None) -> RunPlan:
    """One worker on the learner's host, three on another; off-policy with `replay`."""
    slots = WORKERS * LEASES + 2 * batch if replay is None else 2 * WORKERS * LEASES + 2
    plan = bus_plan(mode, WORKERS, WORKERS, LEASES, slots)
    workers = {"local": len(NEAR), "far": len(FAR)}
    plan = replace(plan, workers=workers, batch_segments=batch, on_policy=replay is None)
    return plan if replay is None else replace(plan, config=replace(plan.config, replay=replay))


class TransitMachine(RuleBasedStateMachine):
    """Workers that deliver, hang or die, brokers that are replaced, and a learner that needs whole batches."""

    @initialize(batch=st.integers(1, 9), on_policy=st.booleans())
    def begin(self, batch: int, on_policy: bool) -> None:
        self.batch, self.on_policy = batch if on_policy else 1, on_policy
        self.plan = plan_of(batch, replay=None if on_policy else ReplaySection(ratio=1.0, learning_starts=0))
        self.arena = Arena.private(self.plan)
        self.state = BrokerState(self.plan, self.arena, other_hosts=True)
        self.spawns, self.hanging = dict.fromkeys(range(WORKERS), 0), set[int]()
        self.next: dict[int, tuple[int, int, int]] = {}
        """Vector env, incarnation and index that each worker steps next."""
        self.held: list[SlotRef] = []
        self.stored = self.delivered = 0
        self.report_all()

    def handle(self, event: ev.Event) -> None:
        for action in self.state.handle(event):
            assert not isinstance(action, ev.Fail | ev.Refuse), action
            if isinstance(action, ev.Forward):
                self.held += action.refs
                self.stored += ROWS * len(action.refs)

    def report_all(self) -> None:
        for host, indexes in (("local", NEAR), ("far", FAR)):
            self.handle(ev.HostReported({i: self.spawns[i] for i in indexes}, (), host, indexes))
        for index in self.spawns:
            self.report(index, self.leases(index))
        self.handle(ev.Announced(Notice(Version(0, 0), "k", 1, "s", 0)))

    def report(self, index: int, refs: tuple[SlotRef, ...]) -> None:
        streams = {self.next[index][0]: self.next[index][1]} if index in self.next else {}
        remote, broker = index in FAR, self.state.incarnation
        self.handle(ev.WorkerReported(index, self.spawns[index], refs, streams, broker, remote=remote))
        snapshot = self.state.snapshot(index)
        for order in (snapshot.assignments or ()) if snapshot else ():
            if self.next.get(index, (-1, -1))[:2] != (order.vector_env, order.incarnation):
                self.next[index] = (order.vector_env, order.incarnation, order.next_index)

    def leases(self, index: int) -> tuple[SlotRef, ...]:
        process = self.state.workers.process(index)
        return () if process is None else tuple(process.leases.values())

    @rule(index=st.integers(0, WORKERS - 1))
    def delivers(self, index: int) -> None:
        refs = self.leases(index)
        if index in self.hanging or index not in self.next or not refs:
            return
        vector_env, incarnation, at = self.next[index]
        meta = SegmentMeta(SegmentId(vector_env, incarnation, at), Version(0, 0), ROWS)
        self.next[index], self.delivered = (vector_env, incarnation, at + 1), self.delivered + ROWS
        if index in FAR:
            self.handle(ev.Delivered(index, self.spawns[index], refs[0], meta, COLUMN_VALUES))
            return
        self.arena.write_meta(refs[0].slot, meta)
        self.arena.seal(refs[0])
        produced = self.arena.streams.read_producer(vector_env).produced + ROWS
        self.arena.streams.write_producer(vector_env, ProducerRecord(incarnation, at, produced))
        self.handle(ev.Sealed(index, self.spawns[index], (refs[0],)))

    @rule(index=st.integers(0, WORKERS - 1))
    def hangs(self, index: int) -> None:
        self.hanging.add(index)

    @rule(index=st.integers(0, WORKERS - 1))
    def is_replaced(self, index: int) -> None:
        self.handle(ev.WorkerExited(index, self.spawns[index]))
        self.spawns[index] += 1
        self.hanging.discard(index)
        self.next.pop(index, None)
        self.report_all()

    @rule()
    def broker_is_replaced(self) -> None:
        claims = {index: self.leases(index) for index in self.spawns}
        self.state = BrokerState(self.plan, self.arena, other_hosts=True)
        self.handle(ev.HostReported({i: self.spawns[i] for i in NEAR}, (), "local", NEAR))
        self.handle(ev.HostReported({i: self.spawns[i] for i in FAR}, (), "far", FAR))
        for index, refs in claims.items():
            self.report(index, refs)
        self.handle(ev.ClaimsExpired())
        self.learns()

    @rule()
    def learns(self) -> None:
        while len(self.held) >= self.batch:
            for ref in self.held[: self.batch]:
                self.arena.release(ref)
            self.held = self.held[self.batch :]
        self.handle(ev.LearnerReported(self.stored, self.stored))

    @invariant()
    def leases_are_bounded(self) -> None:
        if not hasattr(self, "state"):
            return
        counts = {index: len(self.leases(index)) for index in self.spawns}
        assert all(counts[index] <= LEASES for index in NEAR)
        assert all(counts[index] <= MOST_OF_ONE for index in FAR)
        assert sum(max(0, counts[index] - LEASES) for index in FAR) <= transit_leases(self.plan)
        assert sum(counts.values()) + len(self.held) <= self.plan.slots

    @invariant()
    def who_delivers_has_its_leases_whoever_hangs(self) -> None:
        """With nothing to train on, so that the learner waits for them."""
        if hasattr(self, "state"):
            self.learns()
            assert all(len(self.leases(index)) >= LEASES for index in self.spawns.keys() - self.hanging)

    def teardown(self) -> None:
        if hasattr(self, "state"):
            ledger = self.arena.ledger()
            assert ledger.balanced and ledger.stored == self.stored == self.delivered, ledger
            self.arena.close()


TransitMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTransit = TransitMachine.TestCase


def leased(plan: RunPlan) -> list[int]:
    """Leases of each worker where all report at once."""
    arena = Arena.private(plan)
    state = BrokerState(plan, arena, other_hosts=True)
    hosts: list[ev.Event] = [
        ev.HostReported(dict.fromkeys(indexes, 0), (), host, indexes)
        for host, indexes in (("local", NEAR), ("far", FAR))
    ]
    state.handle_all(hosts + [ev.WorkerReported(i, 0, (), {}, remote=i in FAR) for i in (*NEAR, *FAR)])
    processes = state.workers.processes()
    arena.close()
    return [len(process.leases) for process in processes]


def test_workers_of_other_hosts_share_the_slots_of_one_batch() -> None:
    assert leased(plan_of(batch=1)) == [2, 3, 2, 2]
    assert leased(plan_of(batch=6)) == [2, 4, 4, 4]
    assert leased(plan_of(batch=40)) == [2, 7, 7, 7]


def test_bytes_in_flight_bound_the_leases_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "IN_FLIGHT_BYTES", 2 * sum(column.nbytes for column in COLUMNS))
    assert leased(plan_of(batch=40)) == [2, 4, 4, 4]


def test_in_sync_the_round_bounds_the_leases() -> None:
    assert leased(plan_of(batch=WORKERS, mode="sync")) == [2, 2, 2, 2]


@pytest.mark.parametrize(("slack", "most"), [(None, 6), (8 * ROWS, 0), (10 * ROWS, 2), (100 * ROWS, 6)])
def test_off_policy_the_slack_has_room_for_them(slack: int | None, most: int) -> None:
    plan = plan_of(1, replay=ReplaySection(ratio=1.0, learning_starts=0, slack=slack))
    assert transit_leases(plan) == most
    assert sum(leased(plan)) == WORKERS * LEASES + most
