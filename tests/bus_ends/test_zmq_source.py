"""The learner's end against a broker's sockets in the test's hand: descriptors are hints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.shared_memory.bus_plans import bus_plan
from tests.support.waiting import WAIT_S
from zmqrl.bus_ends.zmq_learner import learner_ends
from zmqrl.config.plan import Boot, Endpoints
from zmqrl.messages.frames import pack_descriptors
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import StreamRecord
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version


class HandBroker:
    """Accepts and forwards the segments that the test names."""

    def __init__(self, folder: Path) -> None:
        plan = bus_plan("sync", workers=1, vector_envs=1)
        self.arena = Arena.create(plan)
        self.arena.begin_broker()
        self.context: zmq.Context[Any] = zmq.Context()
        self.descriptors, self.control = self.context.socket(zmq.PUSH), self.context.socket(zmq.ROUTER)
        endpoints = Endpoints("", f"ipc://{folder}/descriptors", "", f"ipc://{folder}/control")
        self.descriptors.bind(endpoints.descriptors)
        self.control.bind(endpoints.control)
        assert self.arena.fd is not None
        boot = Boot("learner", 0, 0, "local", plan, endpoints, {"arena": os.dup(self.arena.fd)})
        self.ends = learner_ends(boot)
        self.source = self.ends.source
        assert self.source.take(0.0) == []

    def accept(self, index: int) -> SlotRef:
        ref = self.arena.lease(index)
        self.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, index), Version(0, index), 8))
        self.arena.seal(ref)
        self.arena.streams.write(0, StreamRecord(incarnation=0, next_index=index + 1))
        self.arena.accept(ref)
        return ref

    def forward(self, *refs: SlotRef) -> None:
        assert self.descriptors.poll(1000 * WAIT_S, zmq.POLLOUT)
        self.descriptors.send(pack_descriptors(1, 0, refs))

    def taken(self) -> list[int]:
        return [segment.meta.id.index for segment in self.source.take(WAIT_S)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HandBroker]:
    held = HandBroker(tmp_path)
    yield held
    held.ends.close()
    held.context.destroy(linger=0)
    held.arena.close()


def test_a_descriptor_out_of_turn_brings_what_is_before_it(broker: HandBroker) -> None:
    broker.accept(0)
    broker.forward(broker.accept(1))
    assert broker.taken() == [0, 1]


def test_a_segment_without_descriptor_is_found(broker: HandBroker) -> None:
    broker.accept(0)
    broker.accept(1)
    assert broker.taken() == [0, 1]


def test_a_new_broker_leads_to_a_full_scan(broker: HandBroker) -> None:
    broker.accept(0)
    broker.arena.begin_broker()
    assert [segment.meta.id.index for segment in broker.source.take(0.0)] == [0]


def test_a_descriptor_of_what_is_not_held_is_nothing(broker: HandBroker) -> None:
    sealed = broker.arena.lease(5)
    broker.arena.write_meta(5, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 8))
    broker.arena.seal(sealed)
    broker.forward(sealed, SlotRef(5, 9), SlotRef(-1, 1), SlotRef(1 << 40, 1))
    assert broker.source.take(0.3) == []
    ref = broker.accept(0)
    broker.forward(ref, ref)
    broker.forward(ref)
    assert broker.taken() == [0]
    assert broker.source.take(0.2) == []
