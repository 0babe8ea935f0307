"""In sync workers join until each has one vector env, though the arena has slots for the leases of the first ones."""

from __future__ import annotations

import random

import pytest

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import Handover
from zmqrl.broker.state import BrokerState
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import Notice, SegmentId, SegmentMeta, SlotRef, Version

FIRST, LEASES, ROUNDS, PATIENCE = 2, 2, 12, 200


class Growing:
    """The broker with the slots of `FIRST` workers, its learner, and the workers that are there."""

    def __init__(self, vector_envs: int, seed: int) -> None:
        self.dice, self.vector_envs = random.Random(seed), vector_envs
        plan = bus_plan("sync", FIRST, vector_envs, LEASES, slots=vector_envs + FIRST * LEASES)
        self.arena = Arena.private(plan)
        self.state = BrokerState(plan, self.arena)
        self.serials: dict[int, int] = {}
        self.streams: dict[int, dict[int, tuple[int, int]]] = {}
        """Of each worker: vector env to incarnation and next index."""
        self.sealed: dict[int, set[SlotRef]] = {}
        self.held: list[SlotRef] = []
        self.version = 0
        for index in range(FIRST):
            self.join(index)
        self._announce()

    def join(self, index: int) -> None:
        self.serials[index], self.streams[index], self.sealed[index] = -1, {}, set()
        members = tuple(self.serials)
        self._deliver(ev.HostReported(dict.fromkeys(members, 0), (), "local", members))

    def turn(self) -> None:
        """Of one worker: it reports, follows, and steps what it can."""
        index = self.dice.choice(list(self.serials))
        streams = {vector_env: incarnation for vector_env, (incarnation, _) in self.streams[index].items()}
        self._deliver(ev.WorkerReported(index, 0, (), streams, self.state.incarnation, self.serials[index]))
        snapshot = self.state.snapshot(index)
        assert snapshot is not None
        if snapshot.assignments is not None:
            before, self.streams[index] = self.streams[index], {}
            for order in snapshot.assignments:
                found = before.get(order.vector_env)
                is_known = found is not None and found[0] == order.incarnation
                self.streams[index][order.vector_env] = (
                    found if is_known and found else (order.incarnation, order.next_index)
                )
            self.serials[index] = snapshot.serial
        leases = [ref for ref in snapshot.leases if ref not in self.sealed[index]]
        for vector_env, (incarnation, following) in self.streams[index].items():
            if following == self.version and leases:
                ref = leases.pop(0)
                meta = SegmentMeta(SegmentId(vector_env, incarnation, following), Version(0, self.version), ROWS)
                self.arena.write_meta(ref.slot, meta)
                self.arena.seal(ref)
                self.arena.streams.write_producer(
                    vector_env, ProducerRecord(incarnation, following, ROWS * (following + 1))
                )
                self.sealed[index].add(ref)
                self.streams[index][vector_env] = (incarnation, following + 1)
                self._deliver(ev.Sealed(index, 0, (ref,)))
                return

    def _deliver(self, event: ev.Event) -> None:
        actions = self.state.handle(event)
        for action in actions:
            assert not isinstance(action, ev.Fail), action
            if isinstance(action, ev.Forward):
                self.held += action.refs
        for request in self.state.assignment.requests:
            answer = Handover(request.vector_env, request.incarnation, request.next_index, ())
            self._deliver(ev.HandoverAnswered(answer))
        if len(self.held) == self.vector_envs:
            self.version += 1
            released, self.held = self.held, []
            self._announce()
            for ref in released:
                self.arena.release(ref)
            self._deliver(ev.LearnerReported(0, self.version))

    def _announce(self) -> None:
        notice = Notice(Version(0, self.version), "key", 0, "", 0, 0, {})
        self._deliver(ev.Announced(notice, None))


def test_a_paused_run_grants_no_leases() -> None:
    """Those that were granted are used; the workers continue with the next lease after the pause."""
    bus = Growing(4, 0)
    bus._deliver(ev.Paused(True))
    for _ in range(PATIENCE):
        bus.turn()
    paused_at, before = bus.version, sum(len(bus.sealed[index]) for index in bus.sealed)
    for _ in range(PATIENCE):
        bus.turn()
    assert (bus.version, sum(len(bus.sealed[index]) for index in bus.sealed)) == (paused_at, before)
    bus._deliver(ev.Paused(False))
    for _ in range(PATIENCE):
        bus.turn()
    assert bus.version > paused_at + 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("vector_envs", [4, 8])
def test_every_round_is_completed(vector_envs: int, seed: int) -> None:
    bus = Growing(vector_envs, seed)
    joining = list(range(FIRST, vector_envs))
    for _ in range(ROUNDS):
        before = bus.version
        for _ in range(PATIENCE * vector_envs):
            bus.turn()
            if joining and bus.dice.random() < 0.1:
                bus.join(joining.pop(0))
            if bus.version > before:
                break
        assert bus.version > before, f"round {before} is not completed by {len(bus.serials)} workers"
    assert not joining and {len(streams) for streams in bus.streams.values()} == {1}
