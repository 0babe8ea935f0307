"""From messages to events, with real sockets and keys: who may say what, and what is refused by which word."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from msgspec import structs

from tests.bus_ends.event_pipe import EventPipe
from tests.shared_memory.bus_plans import ENVS, STEPS, bus_plan
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.broker import events as ev
from zmqrl.broker import outbound
from zmqrl.broker.env_records import pack_record
from zmqrl.broker.inbound import CLAIM_S, InboundDispatcher
from zmqrl.broker.liveness import JOIN_S
from zmqrl.broker.outbound import OutboundReplies
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_server import WeightsServer
from zmqrl.config.codec import replace
from zmqrl.config.plan import Endpoints, TcpListen
from zmqrl.envs.base import EnvSlotState
from zmqrl.errors import WireError
from zmqrl.logs.events import EventPipe as EventWriter
from zmqrl.messages import bus
from zmqrl.messages.bus import HostReport
from zmqrl.messages.frames import pack, pack_descriptors, unpack, unpack_descriptors
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import AllowList, HostKey, Notice, SegmentId, SegmentMeta, SlotRef, Version
from zmqrl.wire.admission import digest_of
from zmqrl.wire.sockets import connect, make_keys

LAST = b"last"
SERVER = make_keys()
FAR, STRANGER = (replace(make_keys(), server=SERVER.public) for _ in range(2))
HOSTS = {FAR.public: HostKey("far", 1)}
TOKEN = "one"
NOTICE = Notice(Version(0, 4), "key", 3, "sha", 5)


class BrokerWithPeers:
    """Everything of a broker but its loop, and peers that send to it."""

    def __init__(
        self,
        folder: Path,
        arena: Arena | None = None,
        curve: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = replace(bus_plan(), workers={"local": 1, "far": 1})
        self.arena = arena or Arena.private(self.plan)
        self.state = BrokerState(self.plan, self.arena, other_hosts=True)
        ends = {name: f"ipc://{folder}/{name}" for name in ("segments", "descriptors", "notices", "control")}
        allowed = AllowList(1, HOSTS, {digest_of(TOKEN): "new"})
        self.sockets = BrokerSockets(Endpoints(**ends), TcpListen("127.0.0.1"), SERVER if curve else None, allowed)
        weights = WeightsServer(None)
        self.outbound = OutboundReplies(self.sockets, self.state, weights)
        self.events = EventPipe()
        self.writer = EventWriter(self.events.write_fd)
        parts = (self.state, self.outbound, weights, self.writer)
        self.inbound = InboundDispatcher(self.plan, self.sockets, *parts, clock)
        self._ids: dict[zmq.Socket[Any], bytes] = {}
        self._context: zmq.Context[Any] = zmq.Context()
        self.near = connect(self._context, zmq.DEALER, ends["control"])
        far, far_keys = Endpoints.tcp("127.0.0.1", self.sockets.ports), FAR if curve else None
        self.far = connect(self._context, zmq.DEALER, far.control, far_keys)
        self.strangers = [connect(self._context, zmq.DEALER, far.control, STRANGER) for _ in range(2)] if curve else []
        self.pusher = connect(self._context, zmq.PUSH, ends["segments"])
        self.far_pusher = connect(self._context, zmq.PUSH, far.segments, far_keys)

    def receive(self, peer: zmq.Socket[Any], *frames: bytes) -> ev.Event | None:
        """What becomes of a message that `peer` sends."""
        peer.send_multipart(frames)
        if peer in (self.pusher, self.far_pusher):
            return self.inbound.on_segments(self._received(self.sockets.segments))
        received = self._received(self.sockets.control)
        self._ids[peer] = received[0].bytes
        return self.inbound.on_control(received)

    def _received(self, socket: zmq.Socket[Any]) -> list[zmq.Frame]:
        deadline = time.monotonic() + WAIT_S
        while not socket.poll(20):
            self.sockets.guard()
            assert time.monotonic() < deadline, f"nothing came in {WAIT_S} s"
        return list(socket.recv_multipart(copy=False))

    def replies_to(self, peer: zmq.Socket[Any]) -> list[str]:
        """Kinds of what it is answered by the end of a round."""
        return [bus.kind_of(message) for message in self.messages_to(peer)]

    def messages_to(self, peer: zmq.Socket[Any]) -> list[bus.Message]:
        """What it is answered by the end of a round."""
        self.outbound.send_pending()
        self.sockets.control.send_multipart((self._ids[peer], LAST))
        messages: list[bus.Message] = []
        while peer.poll(WAIT_S * 1000):
            frame = peer.recv()
            if frame == LAST:
                return messages
            messages.append(unpack(frame))
        raise AssertionError(f"the last word did not come in {WAIT_S} s, after {messages}")

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.sockets.close()
        self.events.close()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[BrokerWithPeers]:
    made = BrokerWithPeers(tmp_path)
    yield made
    made.close()


def agent(host: str, workers: list[int]) -> bytes:
    return pack(HostReport(host, {}, [], [], workers, ""))


def test_the_learner_reports_on_its_own_host_alone(peers: BrokerWithPeers) -> None:
    report = pack(bus.LearnerReport(env_steps=5, updates=7))
    assert peers.receive(peers.near, report) == ev.LearnerReported(5, 7)
    with raises(WireError, reason="not from there", detail="learner from far"):
        peers.receive(peers.far, report)


def test_an_agent_reports_for_its_own_host_alone(peers: BrokerWithPeers) -> None:
    assert peers.receive(peers.far, agent("far", [1])) == ev.HostReported({}, [], "far", [1])
    assert peers.replies_to(peers.far) == ["welcome"]
    with raises(WireError, reason="host", detail="far sends for local"):
        peers.receive(peers.far, agent("local", [1]))
    assert peers.replies_to(peers.far) == []


def test_an_agent_with_failed_workers_is_refused_and_changes_nothing(peers: BrokerWithPeers) -> None:
    peers.state.handle(ev.HostReported({}, (), "far", (1,)))
    peers.state.handle(ev.HostReported({}, (1,), "far"))
    assert peers.receive(peers.far, agent("far", [1])) is None
    assert peers.replies_to(peers.far) == ["shutdown_notice"]


def allow(serial: int, hosts: dict[str, HostKey], tokens: dict[str, str | None] | None = None) -> bytes:
    return pack(bus.AllowedKeys(AllowList(serial, hosts, tokens or {})))


def test_hosts_that_are_not_expected_come_with_the_list(peers: BrokerWithPeers) -> None:
    assert peers.inbound.pop_removed() == []
    listed = pack(bus.AllowedKeys(AllowList(2, HOSTS, absent=("far",))))
    assert peers.receive(peers.near, listed) == ev.Paused(False)
    assert peers.inbound.pop_removed() == [ev.HostAbsent("far")]
    again = InboundDispatcher(peers.plan, peers.sockets, peers.state, peers.outbound, WeightsServer(None), peers.writer)
    assert again.pop_removed() == [ev.HostAbsent("far")], "a new broker has the list from its boot"


def test_a_host_whose_key_was_withdrawn_is_refused_with_live_connections_and_its_workers_are_removed(
    peers: BrokerWithPeers,
) -> None:
    peers.state.handle(peers.receive(peers.far, agent("far", [1])))
    assert peers.replies_to(peers.far) == ["welcome"]
    assert peers.receive(peers.near, allow(2, {})) == ev.Paused(False)
    assert peers.receive(peers.near, allow(2, {})) is None, "no newer list"
    assert peers.inbound.pop_removed() == [ev.HostRemoved("far", [1])]
    assert peers.inbound.pop_removed() == []
    for message in (agent("far", [1]), pack(bus.WorkerExit(1, 0)), pack(bus.Fetch(Version(0, 0)))):
        with raises(WireError, reason="unknown key"):
            peers.receive(peers.far, message)
    assert peers.replies_to(peers.far) == ["shutdown_notice"], "its agent is to end"
    assert [(e["event"], e.get("serial")) for e in peers.events.read(0)] == [("host_here", None), ("listening", 2)]


def test_segments_of_a_withdrawn_key_are_refused_on_their_live_connection(peers: BrokerWithPeers) -> None:
    meta = SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), STEPS * ENVS)
    columns = [peers.arena.columns[spec.name][0].tobytes() for spec in peers.plan.columns]
    words = bus.SegmentHeader.of(meta)
    segment = (pack(bus.Segment(peers.arena.layout.digest, 1, 2, SlotRef(3, 4), words)), *columns)
    assert isinstance(peers.receive(peers.far_pusher, *segment), ev.Delivered)
    peers.receive(peers.near, allow(2, {}))
    with raises(WireError, reason="unknown key"):
        peers.receive(peers.far_pusher, *segment)


def test_the_newest_list_counts_whatever_the_order(peers: BrokerWithPeers) -> None:
    peers.receive(peers.near, allow(5, HOSTS))
    assert peers.receive(peers.near, allow(4, {})) is None
    assert peers.receive(peers.near, allow(5, {})) is None
    assert peers.inbound.pop_removed() == []
    assert peers.receive(peers.far, agent("far", [1])) == ev.HostReported({}, [], "far", [1])


def test_a_host_that_came_back_has_lost_the_workers_of_its_former_agent(peers: BrokerWithPeers) -> None:
    peers.receive(peers.far, agent("far", [1]))
    peers.receive(peers.near, allow(2, {STRANGER.public: HostKey("far", 2)}))
    assert peers.inbound.pop_removed() == [ev.HostRemoved("far", [1])]
    with raises(WireError, reason="unknown key"):
        peers.receive(peers.far, agent("far", [1]))


def test_what_the_former_agent_of_a_host_and_its_workers_send_is_refused_while_the_next_agent_is_there(
    peers: BrokerWithPeers,
) -> None:
    """The key is that of one lifetime of the agent: an index of the next one does not help."""
    words = bus.SegmentHeader.of(SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), STEPS * ENVS))
    columns = [peers.arena.columns[spec.name][0].tobytes() for spec in peers.plan.columns]
    peers.state.handle(peers.receive(peers.far, agent("far", [1])))
    peers.receive(peers.near, allow(2, {STRANGER.public: HostKey("far", 2)}))
    peers.state.handle(peers.inbound.pop_removed()[0])
    peers.state.handle(peers.receive(peers.strangers[0], agent("far", [2])))
    former: list[bytes] = [
        agent("far", [1]),
        agent("far", [2]),
        *(pack(bus.WorkerReport(index, 0, 1, -1, True, [], [], [], [], 0, 0)) for index in (1, 2)),
        pack(bus.WorkerExit(2, 0)),
        pack(bus.Heartbeat("worker", 2, 0, 1)),
    ]
    for message in former:
        with raises(WireError, reason="unknown key"):
            peers.receive(peers.far, message)
    segment = pack(bus.Segment(peers.arena.layout.digest, 2, 0, SlotRef(3, 4), words))
    with raises(WireError, reason="unknown key"):
        peers.receive(peers.far_pusher, segment, *columns)
    assert peers.state.workers.members == {2}


@pytest.mark.parametrize("curve", [True, False], ids=["with keys", "without"])
def test_no_other_host_changes_the_list(tmp_path: Path, curve: bool) -> None:
    peers, sender = BrokerWithPeers(tmp_path, curve=curve), "far" if curve else "a host without a key"
    try:
        with raises(WireError, reason="not from there", detail=f"allow from {sender}"):
            peers.receive(peers.far, allow(9, {STRANGER.public: HostKey("far", 9)}))
    finally:
        peers.close()


def test_a_token_admits_one_key_once_the_launcher_has_listed_it(peers: BrokerWithPeers) -> None:
    one, other = peers.strangers
    with raises(WireError, reason="unknown key"):
        peers.receive(one, agent("new", [7]))
    assert peers.replies_to(one) == ["shutdown_notice"]
    assert peers.receive(one, pack(bus.Enrol(TOKEN))) is None
    digest, public = digest_of(TOKEN), STRANGER.public
    assert peers.events.read(0) == [{"event": "enrolled", "token": digest, "public": public}]
    assert peers.replies_to(one) == [], "the launcher decides"
    peers.receive(peers.near, allow(2, {**HOSTS, public: HostKey("new", 1)}, {digest: None}))
    assert peers.receive(one, pack(bus.Enrol(TOKEN))) is None
    assert peers.replies_to(one) == ["welcome"]
    assert peers.receive(one, agent("new", [7])) == ev.HostReported({}, [], "new", [7])
    peers.receive(peers.near, allow(3, HOSTS, {digest: None}))
    used = "the token was used before: a connection file admits one host, once"
    with raises(WireError, reason="token", detail=used):
        peers.receive(other, pack(bus.Enrol(TOKEN)))
    assert peers.replies_to(other) == ["shutdown_notice"]


def test_an_unissued_token_is_refused_with_the_reason(peers: BrokerWithPeers) -> None:
    stranger, _ = peers.strangers
    unknown = "the token is not one of this run, or was replaced by a newer connection file"
    with raises(WireError, reason="token", detail=unknown):
        peers.receive(stranger, pack(bus.Enrol("another")))
    assert peers.replies_to(stranger) == ["shutdown_notice"]
    with raises(WireError, reason="not from there"):
        peers.receive(peers.near, pack(bus.Enrol(TOKEN)))


@pytest.mark.parametrize(("frames", "reason"), [
    ((pack(bus.WorkerExit(index=0, spawn=0)), b"more"), "frames"),
    ((pack(bus.Welcome(broker=1, hanging=[])),), "kind"),
    ((pack(bus.Heartbeat(role="agent", index=0, spawn=0, progress=0)),), "value"),
    ((pack(bus.Heartbeat(role="worker", index=1 << 20, spawn=0, progress=0)),), "process"),
    ((pack(bus.Fetch(Version(0, 4))),), "version"),
], ids=["too many frames", "a broker's own kind", "no such role", "no such worker", "not announced"])  # fmt: skip
def test_a_message_not_allowed_is_refused(peers: BrokerWithPeers, frames: tuple[bytes, ...], reason: str) -> None:
    with pytest.raises(WireError) as refused:
        peers.receive(peers.near, *frames)
    assert refused.value.reason == reason


def test_what_was_announced_may_be_fetched(peers: BrokerWithPeers) -> None:
    announced = peers.receive(peers.near, pack(bus.Announce(notice=NOTICE, back=None)))
    assert announced == ev.Announced(NOTICE)
    peers.state.handle(announced)
    assert peers.receive(peers.far, pack(bus.Fetch(Version(0, 4)))) is None
    with raises(WireError, reason="version", detail="0-5 has not been announced"):
        peers.receive(peers.far, pack(bus.Fetch(Version(0, 5))))


def test_the_learner_is_answered_when_new_and_when_it_repeats_a_version(peers: BrokerWithPeers) -> None:
    announce = pack(bus.Announce(notice=NOTICE, back=None))
    event = peers.receive(peers.near, announce)
    assert peers.replies_to(peers.near) == ["broker_status"]
    assert peers.replies_to(peers.near) == []
    peers.outbound.perform(peers.state.handle(event))
    peers.receive(peers.near, pack(bus.LearnerReport(env_steps=0, updates=0)))
    assert peers.replies_to(peers.near) == []
    peers.receive(peers.near, announce)
    assert peers.replies_to(peers.near) == ["broker_status"]
    peers.outbound.perform([ev.RequestHandovers()])
    assert peers.replies_to(peers.near) == ["broker_status"]


def test_a_worker_is_sent_its_assignment_once_per_round(peers: BrokerWithPeers) -> None:
    event = peers.receive(peers.near, pack(bus.WorkerReport(index=0, spawn=2, broker=0, serial=-1, remote=False,
        leases=[SlotRef(1, 1)], streams=[bus.StreamAt(0, 3)], stopped=[0], open=[],
        segments=6, busy_us=7)))  # fmt: skip
    assert event == ev.WorkerReported(0, 2, [SlotRef(1, 1)], {0: 3}, 0, -1, False, [], [0], 6, 7e-6, event.at)
    peers.outbound.perform(peers.state.handle_all((event, event)))
    assert peers.replies_to(peers.near) == ["assignments"]
    assert peers.replies_to(peers.near) == []


def test_descriptors_and_whole_segments_use_the_same_socket(peers: BrokerWithPeers) -> None:
    sealed = peers.receive(peers.pusher, pack_descriptors(1, 2, [SlotRef(3, 4)]))
    assert sealed == ev.Sealed(1, 2, [SlotRef(3, 4)])
    meta = SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), STEPS * ENVS)
    columns = [peers.arena.columns[spec.name][0].tobytes() for spec in peers.plan.columns]
    digest = peers.arena.layout.digest
    event = peers.receive(
        peers.pusher, pack(bus.Segment(digest, 1, 2, SlotRef(3, 4), bus.SegmentHeader.of(meta))), *columns
    )
    assert isinstance(event, ev.Delivered)
    assert (event.index, event.spawn, event.ref, event.meta) == (1, 2, SlotRef(3, 4), meta)
    with raises(WireError, reason="segment", detail="not a segment of this run's layout"):
        peers.receive(
            peers.pusher, pack(bus.Segment(digest + 1, 1, 2, SlotRef(3, 4), bus.SegmentHeader.of(meta))), *columns
        )


def test_silence_becomes_events_once(peers: BrokerWithPeers) -> None:
    peers.receive(peers.near, pack(bus.Heartbeat(role="worker", index=0, spawn=5, progress=1)))
    peers.receive(peers.far, agent("far", [1]))
    later = time.monotonic() + 1000.0
    assert peers.inbound.judge(later) == [ev.WorkerSilent(0, 5), ev.HostRemoved("far", [1])]
    assert peers.inbound.judge(later) == []


def test_a_worker_of_another_host_that_hangs_is_named_to_its_agent(tmp_path: Path) -> None:
    """No other message tells that agent: its connections are in order, and it sees a process that lives."""
    now = [100.0]
    peers = BrokerWithPeers(tmp_path, clock=lambda: now[0])
    try:
        report = pack(HostReport("far", {1: 3}, [1], [], [1], ""))
        named = {}
        for second in range(45):
            now[0] = 100.0 + second
            peers.receive(peers.far, report)
            if second < 10:
                peers.receive(peers.far, pack(bus.Heartbeat("worker", 1, 3, second)))
            found = peers.inbound.judge(now[0])
            (welcome,) = peers.messages_to(peers.far)
            assert isinstance(welcome, bus.Welcome)
            named[second] = welcome.hanging
            assert found == ([ev.WorkerSilent(1, 3)] if second == 29 else [])
        assert [second for second, hanging in named.items() if hanging] == list(range(29, 45))
        assert named[44] == [bus.Hanging("worker", 1, 3, "lost")]
    finally:
        peers.close()


def test_a_host_of_the_list_that_never_reports_is_lost_once(peers: BrokerWithPeers) -> None:
    """The one of which a new broker is notified at its start, and one that is added later."""
    peers.receive(peers.near, allow(2, {**HOSTS, STRANGER.public: HostKey("new", 1)}))
    peers.events.read(0)
    later = time.monotonic() + peers.plan.config.limits.host_lease_s + JOIN_S
    assert peers.inbound.judge(later - 5.0) == [], "it may still be connecting"
    gone = peers.inbound.judge(later + 5.0)
    assert gone == [ev.HostRemoved("far", [1]), ev.HostRemoved("new", [])]
    assert peers.events.read(0) == [{"event": "host_lost", "host": host} for host in ("far", "new")]
    assert peers.inbound.judge(later + 5.0) == []
    assert peers.state.handle_all(gone) == [], "the launcher knows whether another host is to come"


def test_a_run_without_workers_is_ended_by_the_launcher_alone(peers: BrokerWithPeers) -> None:
    """It knows which hosts are to return."""
    peers.receive(peers.near, allow(2, {}))
    assert peers.state.handle_all(peers.inbound.pop_removed()) == []
    assert peers.state.handle_all([ev.HostReported({}, (0,), "local", ())] * 2) == []
    assert not peers.state.workers.members


def worker(index: int) -> bytes:
    return pack(bus.WorkerReport(index=index, spawn=0, broker=0, serial=-1, remote=True,
        leases=[], streams=[], stopped=[], open=[], segments=0, busy_us=0))  # fmt: skip


class FullSocket:
    """As one whose peer reads nothing."""

    def send_multipart(self, parts: Sequence[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK
        raise zmq.Again


def test_an_answer_that_its_peer_has_no_room_for_is_counted(
    peers: BrokerWithPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.sockets, "control", FullSocket())
    for _ in range(2):
        peers.outbound.welcome(b"peer")
    assert peers.outbound.refused == {"no room to answer": 2}


def test_the_learner_is_sent_each_accepted_segment_once(
    peers: BrokerWithPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "MOST_DESCRIPTORS", 2)
    endpoint = peers.sockets.descriptors.getsockopt_string(zmq.LAST_ENDPOINT)
    learner = connect(peers.near.context, zmq.PULL, endpoint)
    refs = [SlotRef(slot, 1) for slot in range(3)]
    peers.outbound.perform([ev.Forward(tuple(refs[:1])), ev.Forward(tuple(refs[1:]))])
    try:
        for expected in (refs[:2], refs[2:]):
            until(lambda: (peers.outbound.send_pending(), learner.poll(0))[1])
            assert unpack_descriptors(learner.recv()) == (peers.state.incarnation, 0, expected)
        peers.outbound.send_pending()
        assert not learner.poll(0)
    finally:
        learner.close(0)


def test_agents_of_other_hosts_are_notified_of_the_end(peers: BrokerWithPeers) -> None:
    peers.receive(peers.near, agent("local", [0]))
    peers.receive(peers.far, agent("far", [1]))
    for peer in (peers.near, peers.far):
        peers.messages_to(peer)
    peers.outbound.end_remote()
    assert peers.messages_to(peers.near) == []
    assert peers.messages_to(peers.far) == [bus.ShutdownNotice("the run is over")]


def test_a_worker_gets_the_parts_of_its_records_that_it_requests_until_it_has_begun(
    peers: BrokerWithPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {v: pack_record((EnvSlotState(v, np.arange(20.0)),)) for v in (0, 1)}
    report = bus.WorkerReport(0, 0, peers.state.incarnation, -1, False, [], [], [], [], 0, 0)

    def request(spawn: int, *parts: tuple[int, int, int]) -> list[bus.Message]:
        at = [bus.RecordAt(*part) for part in parts]
        assert peers.receive(peers.near, pack(bus.RecordRequest(0, spawn, at))) is None
        return peers.messages_to(peers.near)

    peers.state.handle_all([ev.HostReported({0: 0}, (), "local", (0,)), ev.HostAbsent("far")])
    for spawn in (0, 1):  # the second one has to continue what the first has stepped
        peers.state.handle(peers.receive(peers.near, pack(structs.replace(report, spawn=spawn))))
    peers.receive(peers.near, pack(bus.LearnerReport(0, 0)))
    peers.replies_to(peers.near)
    for asked in peers.state.assignment.requests:
        record = records[asked.vector_env]
        where = asked.vector_env, asked.incarnation, asked.next_index, len(record)
        for offset, content, kinds in ((9, record[9:], []), (0, record[:9], ["broker_status"])):
            part = pack(bus.HandoverAnswer(bus.AnswerPart(*where, offset, content)))
            assert peers.receive(peers.near, part) is None
            assert ("broker_status" in peers.replies_to(peers.near)) == bool(kinds)
        event = peers.receive(peers.near, pack(bus.HandoverAnswer(bus.AnswerPart(*where, 9, record[9:]))))
        assert isinstance(event, ev.HandoverAnswered) and pack_record(event.handover.states) == record
        peers.state.handle(event)
        peers.replies_to(peers.near)
    assert request(0, (0, 1, 0)) == [], "of a spawn that has gone"
    assert request(1, (0, 0, 0), (7, 1, 0)) == [], "of what it does not hold"
    whole = [bus.RecordPart(0, 1, 0, records[0]), bus.RecordPart(1, 1, 9, records[1][9:])]
    assert request(1, (0, 1, 0), (1, 1, 9)) == [bus.Record(1, whole)]
    monkeypatch.setattr(outbound, "PART_BYTES", len(records[0]) + 5)
    whole[1] = bus.RecordPart(1, 1, 9, records[1][9:14])
    assert request(1, (0, 1, 0), (1, 1, 9), (1, 1, 14)) == [bus.Record(1, whole)], "so much in one message"
    peers.state.handle(ev.WorkerReported(0, 1, (), {0: 1}))
    assert [peers.state.assignment.is_unbegun(v, 1) for v in (0, 1, 7)] == [False, True, False]
    assert not peers.state.assignment.is_unbegun(1, 0)
    rest = [bus.RecordPart(1, 1, 9, records[1][9:])]
    assert request(1, (0, 1, 0), (1, 1, 9)) == [bus.Record(1, rest)], "the other one has begun"


def test_a_host_that_leaves_and_returns_under_one_agent_leaves_nothing_behind(peers: BrokerWithPeers) -> None:
    """Each return has other workers."""
    for first in range(1, 101, 2):
        here = {first: 0, first + 1: 0}
        for alive in (here, here, {}):
            messages = [pack(HostReport("far", alive, [], [], list(alive), "")), *map(worker, here)]
            events = [peers.receive(peers.far, message) for message in messages]
            peers.state.handle_all(filter(None, events))
            assert [worker.index for worker in peers.state.workers] == list(alive)
        for index in here:
            peers.receive(peers.near, pack(bus.Heartbeat("worker", index, 0, 1)))
    assert [worker.index for worker in peers.state.workers] == [99, 100], "of heartbeats on their way"
    peers.state.handle(ev.HostReported({0: 0}, (), "local", (0,)))
    assert [worker.index for worker in peers.state.workers] == [0]
    peers.receive(peers.near, allow(2, {}))
    assert peers.inbound.pop_removed() == [ev.HostRemoved("far", [])]


def test_workers_of_a_host_that_was_cut_off_stay_known_to_have_failed(peers: BrokerWithPeers) -> None:
    peers.state.handle(ev.HostReported({1: 0}, (), "far", (1,)))
    peers.state.handle(ev.HostRemoved("far", (1,)))
    assert (list(peers.state.workers), peers.state.workers.has_failed(1)) == ([], True)
    peers.receive(peers.far, agent("far", [1]))
    (notice,) = peers.messages_to(peers.far)
    assert isinstance(notice, bus.ShutdownNotice)


def test_another_broker_waits_for_claims_for_a_while(peers: BrokerWithPeers, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    here = [ev.HostReported({1: 0}, (), "far1", (1,)), ev.WorkerReported(1, 0, (), {}, remote=True)]
    peers.state.handle_all(
        [ev.HostReported({0: 0}, (), "far0", (0,)), ev.WorkerReported(0, 0, (), {}, remote=True), *here]
    )
    after = BrokerWithPeers(tmp_path / "next", peers.arena)
    try:
        now = time.monotonic()
        after.state.handle(ev.HostReported({}, (), peers.plan.config.learner.host, ()))
        after.state.handle_all([here[0], structs.replace(here[1], broker=after.state.incarnation)])
        assert after.inbound.judge(now) == [] == after.state.assignment.requests
        wait_s = max(CLAIM_S, peers.plan.config.limits.lost_after_s)
        assert after.inbound.judge(now + wait_s - 1.0) == []
        waited = after.inbound.judge(now + wait_s + 1.0)
        assert waited == [ev.ClaimsExpired()]
        after.state.handle_all(waited)
        assert after.state.assignment.requests, "what the other stepped is taken up"
        assert after.inbound.judge(now + 2 * wait_s) == []
        assert peers.inbound.judge(now + wait_s + 1.0) == [], "the first has nobody to wait for"
    finally:
        after.close()
