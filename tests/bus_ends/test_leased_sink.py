"""A worker of another host keeps its segments while leases come and go under them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker.events import Assignments, AssignmentSnapshot, StreamAssignment
from zmqrl.bus_ends.remote_sink import RemoteWriter
from zmqrl.bus_ends.worker_end import LeasedSink
from zmqrl.types import SegmentId, SlotRef, Version

ASSIGNMENT = StreamAssignment(0, 0, 0, None)


class HandSink(LeasedSink):
    """The broker's word comes from the test, and what is pushed stays here."""

    def __init__(self) -> None:
        super().__init__(RemoteWriter(bus_plan()))
        self.pushed: list[list[SlotRef]] = []

    def _push(self, refs: Sequence[SlotRef]) -> None:
        self.pushed.append(list(refs))

    def receive(self, leases: Sequence[SlotRef], accepted: int) -> None:
        self._apply(AssignmentSnapshot(0, leases, {0: (0, accepted)}, (ASSIGNMENT,), 1))

    def poll(self, timeout_s: float) -> Assignments:
        self._flush()
        return self._assignments()

    def write(self, index: int) -> SlotRef:
        segment = self.open(0)
        assert segment is not None
        self.seal(segment, SegmentId(0, 0, index), Version(0, index), ROWS)
        return segment.ref

    def close(self) -> None:
        return


def test_a_segment_whose_lease_is_taken_before_it_was_pushed_goes_out_under_another_only() -> None:
    sink = HandSink()
    sink.receive([SlotRef(0, 1), SlotRef(1, 1)], accepted=0)
    sink.write(0)
    sink.receive([SlotRef(2, 1), SlotRef(3, 1)], accepted=0)
    sink.poll(0.0)
    assert sink.pushed == [[SlotRef(2, 1)]]


def test_a_segment_accepted_before_its_push_is_not_pushed() -> None:
    sink = HandSink()
    sink.receive([SlotRef(0, 1), SlotRef(1, 1)], accepted=0)
    sink.write(0)
    sink.receive([SlotRef(1, 1)], accepted=1)
    sink.poll(0.0)
    assert [ref for refs in sink.pushed for ref in refs] == []
