"""Env-slot records far above the limit of a control message reach the successor whole, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bus_ends.real_bus import RealBus
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.support.waiting import until
from zmqrl.broker.events import Handover, StreamAssignment
from zmqrl.bus_ends.learner_end import LearnerEnds
from zmqrl.bus_ends.zmq_sink import ZmqSink
from zmqrl.envs.base import EnvSlotState
from zmqrl.messages.bus import HostReport
from zmqrl.messages.frames import MAX_CONTROL_BYTES
from zmqrl.types import SegmentId, Version

pytestmark = pytest.mark.whole
TURN_S = 0.02
VECTOR_ENVS = 2
STEPS = 6000
"""Of each env of 400 float32 actions: 19 MB for two envs, 38 MB for both vector envs."""


def states(vector_env: int) -> tuple[EnvSlotState, ...]:
    actions = np.random.default_rng(vector_env).random((2, STEPS, 400), np.float32)
    return (EnvSlotState(3, actions[0]), EnvSlotState(4, actions[1], resetting=True))


STATES = {vector_env: states(vector_env) for vector_env in range(VECTOR_ENVS)}
assert sum(s.actions.nbytes for s in STATES[0] if s.actions is not None) > MAX_CONTROL_BYTES


class LongBus(RealBus):
    """Vector envs whose worker died after one segment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(bus_plan("sync", workers=1, vector_envs=VECTOR_ENVS, leases=2, slots=8), folder)
        self.ends = self.learner()
        self.spawn = 0
        first = self.sink()
        self.agent.report(HostReport("local", {0: 0}, [], [], [0], ""))
        until(lambda: len(first.poll(TURN_S).streams) == VECTOR_ENVS, "assignments")
        for vector_env in range(VECTOR_ENVS):
            segment = until(lambda: first.open(vector_env) or (first.poll(TURN_S) and None), "a lease")  # noqa: B023
            first.progress(vector_env, ROWS)
            first.seal(segment, SegmentId(vector_env, 0, 0), Version(0, 0), ROWS)
        until(lambda: first.poll(TURN_S) and not first._sealed, "accepted")
        self.ends.source.release([taken.ref for taken in self.ends.source.take(TURN_S)])
        first._heartbeat.close()
        self.agent.report(HostReport("local", {}, [], [], [0], ""))

    def successor(self) -> ZmqSink:
        self.spawn += 1
        made = self.sink(spawn=self.spawn)
        self.agent.report(HostReport("local", {0: self.spawn}, [], [], [0], ""))
        return made

    def turn(self, sink: ZmqSink) -> tuple[StreamAssignment, ...]:
        """One turn of worker and learner; what the worker is to step."""
        answer_take_ups(self.ends)
        return sink.poll(TURN_S).streams

    def all_assignments(self, sink: ZmqSink) -> dict[int, StreamAssignment]:
        def taken_up() -> dict[int, StreamAssignment]:
            assignments = {assignment.vector_env: assignment for assignment in self.turn(sink)}
            return assignments if len(assignments) == VECTOR_ENVS else {}

        found: dict[int, StreamAssignment] = until(taken_up, "every vector env", every_s=0.0)
        return found

    def until_a_part_came(self, sink: ZmqSink) -> None:
        until(
            lambda: self.turn(sink) is not None and any(r.offset for _, r in sink._records._awaited.values()),
            "the first part of a record",
            every_s=0.0,
        )
        assert not sink.poll(0.0).streams, "nothing is begun before it is whole"


def answer_take_ups(learner: LearnerEnds) -> None:
    learner.source.take(0.0)
    for request in learner.channel.handover_requests():
        learner.channel.answer(Handover(request.vector_env, request.incarnation, 1, STATES[request.vector_env]))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[LongBus]:
    held = LongBus(tmp_path)
    yield held
    held.close()


def check(assignments: dict[int, StreamAssignment]) -> None:
    for vector_env, assignment in assignments.items():
        assert assignment.next_index == 1 and assignment.states is not None
        for got, sent in zip(assignment.states, STATES[vector_env], strict=True):
            assert (got.episode, got.resetting) == (sent.episode, sent.resetting)
            assert got.actions is not None and sent.actions is not None
            assert np.array_equal(got.actions, sent.actions)


def test_long_records_reach_the_successor(bus: LongBus) -> None:
    check(bus.all_assignments(bus.successor()))
    assert bus.broker.poll() is None


def test_a_worker_killed_between_two_parts_has_a_successor(bus: LongBus) -> None:
    first = bus.successor()
    bus.until_a_part_came(first)
    first._heartbeat.close()
    bus.agent.report(HostReport("local", {}, [], [], [0], ""))
    assignments = bus.all_assignments(bus.successor())
    check(assignments)
    assert 2 in {assignment.incarnation for assignment in assignments.values()}, (
        "the one whose record was on its way begins anew"
    )


def test_a_broker_killed_between_two_parts_requests_them_again(bus: LongBus) -> None:
    successor = bus.successor()
    bus.until_a_part_came(successor)
    bus.kill(bus.broker)
    bus.broker = bus.start_broker()
    bus.agent.report(HostReport("local", {0: bus.spawn}, [], [], [0], ""))
    check(bus.all_assignments(successor))
    assert bus.arena.ledger().balanced


def test_a_learner_restarted_between_two_parts_continues(bus: LongBus) -> None:
    successor = bus.successor()
    source, channel = bus.ends
    until(lambda: successor.poll(TURN_S) and (source.take(0.0), channel.handover_requests())[1], "requested")
    channel.answer(Handover(0, 1, 1, STATES[0]))
    source.take(0.0)
    bus.ends.close()
    bus.ends = bus.learner()
    check(bus.all_assignments(successor))


def test_a_lost_part_is_requested_again(bus: LongBus, monkeypatch: pytest.MonkeyPatch) -> None:
    successor = bus.successor()
    taken, lost = successor._records.take_part, []

    def lose_every_third(part: list[object]) -> bool:
        lost.append(part[2])
        return len(lost) % 30 != 3 and taken(part)  # type: ignore[arg-type]

    monkeypatch.setattr(successor._records, "take_part", lose_every_third)
    check(bus.all_assignments(successor))
    assert len(lost) > 30
