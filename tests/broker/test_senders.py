"""What comes through the gate is believed only of the workers that its host holds: real sockets, real keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.broker.test_inbound import NOTICE, BrokerWithPeers, agent
from zmqrl.broker import events as ev
from zmqrl.errors import WireError
from zmqrl.messages import bus
from zmqrl.messages.bus import HostReport
from zmqrl.messages.frames import pack, pack_descriptors
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version

LOCAL, FAR, LATER = 0, 1, 5
"""Workers: of the learner's host, of host `far`, and one that no host holds yet."""


@pytest.fixture(params=[True, False], ids=["curve", "curve off"])
def peers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerWithPeers]:
    made = BrokerWithPeers(tmp_path, curve=request.param)
    yield made
    made.close()


def worker(index: int, remote: bool = True, spawn: int = 2) -> bytes:
    return pack(bus.WorkerReport(index=index, spawn=spawn, broker=0, serial=-1, remote=remote,
        leases=[], streams=[], stopped=[], open=[], segments=0, busy_us=0))  # fmt: skip


def worker_exit(index: int) -> bytes:
    return pack(bus.WorkerExit(index=index, spawn=3))


def heartbeat(index: int, role: str = "worker") -> bytes:
    return pack(bus.Heartbeat(role=role, index=index, spawn=99, progress=1))


def record_request(index: int) -> bytes:
    return pack(bus.RecordRequest(index=index, spawn=3, records=[bus.RecordAt(0, 0, 0)]))


def segment(peers: BrokerWithPeers, index: int) -> tuple[bytes, ...]:
    meta = SegmentMeta(SegmentId(index, 0, 0), Version(0, 0), 8)
    columns = [peers.arena.columns[spec.name][0].tobytes() for spec in peers.plan.columns]
    return pack(bus.Segment(peers.arena.layout.digest, index, 3, SlotRef(0, 1), bus.SegmentHeader.of(meta))), *columns


def refused(peers: BrokerWithPeers, peer: zmq.Socket[Any], *frames: bytes) -> str:
    with pytest.raises(WireError) as caught:
        peers.receive(peer, *frames)
    return caught.value.reason


@pytest.mark.parametrize("forged", [worker(LOCAL), worker_exit(LOCAL), heartbeat(LOCAL), record_request(LOCAL)],
    ids=["worker", "worker_exit", "heartbeat", "record_request"])  # fmt: skip
def test_another_host_does_not_speak_for_a_local_worker(peers: BrokerWithPeers, forged: bytes) -> None:
    assert refused(peers, peers.far, forged) == "host"
    assert peers.receive(peers.near, worker_exit(LOCAL)) == ev.WorkerExited(LOCAL, 3), "the worker itself does"


def test_a_live_local_worker_keeps_its_slot_under_forged_shutdown_notices(peers: BrokerWithPeers) -> None:
    alive = ev.HostReported({LOCAL: 3}, (), "local", (LOCAL,))
    peers.state.handle_all([alive, ev.WorkerReported(LOCAL, 3, (), {}), ev.Announced(NOTICE)])
    before = peers.state.snapshot(LOCAL)
    assert before is not None and before.leases
    assert refused(peers, peers.far, worker_exit(LOCAL)) == "host"
    assert peers.state.snapshot(LOCAL) == before


def test_a_segment_is_bound_to_the_host_of_its_sender(peers: BrokerWithPeers) -> None:
    assert refused(peers, peers.far_pusher, *segment(peers, LOCAL)) == "host"
    event = peers.receive(peers.far_pusher, *segment(peers, FAR))
    assert isinstance(event, ev.Delivered) and event.index == FAR


def test_descriptors_come_from_workers_that_see_the_arena_alone(peers: BrokerWithPeers) -> None:
    frame = pack_descriptors(FAR, 0, [SlotRef(0, 1)])
    assert refused(peers, peers.far_pusher, frame) == "not from there"
    assert peers.receive(peers.pusher, frame) == ev.Sealed(FAR, 0, [SlotRef(0, 1)])


def test_the_learner_does_not_beat_on_another_host(peers: BrokerWithPeers) -> None:
    assert refused(peers, peers.far, heartbeat(0, "learner")) == "not from there"
    assert peers.receive(peers.near, heartbeat(0, "learner")) is None


def test_a_worker_of_another_host_has_no_arena(peers: BrokerWithPeers) -> None:
    assert refused(peers, peers.far, worker(FAR, remote=False)) == "not remote"
    assert isinstance(peers.receive(peers.far, worker(FAR)), ev.WorkerReported)


@pytest.mark.parametrize("field", ["alive", "ready", "failed", "workers"])
def test_an_agent_names_none_of_another_hosts_workers(peers: BrokerWithPeers, field: str) -> None:
    value: Any = {LOCAL: 7} if field == "alive" else [LOCAL]
    empty: dict[str, Any] = {"alive": {}, "ready": [], "failed": [], "workers": [], "acting": ""}
    report = HostReport("far", **{**empty, field: value})
    assert refused(peers, peers.far, pack(report)) == "host"


def test_no_outside_agent_reports_for_the_learners_host(peers: BrokerWithPeers) -> None:
    assert refused(peers, peers.far, agent("local", [])) == "host"


def test_a_planned_worker_is_accepted_before_its_agent(peers: BrokerWithPeers) -> None:
    """Their connections are not in step: after a broker's restart either may be first."""
    event = peers.receive(peers.far, worker(FAR))
    assert isinstance(event, ev.WorkerReported)
    assert event == ev.WorkerReported(FAR, 2, [], {}, 0, -1, True, [], [], at=event.at)


def test_a_worker_that_came_later_is_accepted_after_its_agent(peers: BrokerWithPeers) -> None:
    """It is passed over until then without a count: an honest worker repeats its message at each heartbeat."""
    assert peers.receive(peers.far, worker(LATER)) is None
    assert peers.replies_to(peers.far) == []
    peers.receive(peers.far, agent("far", [FAR, LATER]))
    assert isinstance(peers.receive(peers.far, worker(LATER)), ev.WorkerReported)


def test_a_local_worker_that_came_later_belongs_to_this_host(peers: BrokerWithPeers) -> None:
    peers.receive(peers.near, agent("local", [LOCAL, LATER]))
    assert refused(peers, peers.far, worker(LATER)) == "host"
    assert refused(peers, peers.far, agent("far", [LATER])) == "host"


def test_a_worker_that_is_to_leave_is_accepted_after_a_broker_restart(peers: BrokerWithPeers) -> None:
    """Its host holds it no more, and lists it as alive."""
    alive = pack(HostReport("far", {LATER: 2}, [], [], [FAR], ""))
    peers.receive(peers.far, alive)
    assert isinstance(peers.receive(peers.far, worker(LATER)), ev.WorkerReported)
