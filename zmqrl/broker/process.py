"""The broker process: one poll loop that moves bytes between sockets and `BrokerState`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.doors import Doors
from zmqrl.broker.hosts import Hosts
from zmqrl.broker.liveness import Beat, Liveness, Member
from zmqrl.broker.orders import TakeUp, order_from_data, order_to_data
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_desk import WeightsDesk
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.errors import TrainingFailed, WireError
from zmqrl.logs.events import EventPipe
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.types import Notice, SlotRef, Version
from zmqrl.wire import messages
from zmqrl.wire.gate import user_of
from zmqrl.wire.sockets import drain_frames, send

POLL_MS = 500
SEE_OFF_S = 3.0
FETCH_POLL_MS = 2
"""While somebody waits for a version that is on its way through this host's agent."""
CLAIM_S = 3.0
"""How long a new broker waits for the workers of other hosts to come back before it moves their vector envs."""
MOST_MESSAGES = 1000
"""Of one socket in one round."""
MOST_DESCRIPTORS = 10_000
ROLES = ("worker", "learner")
FROM_OTHER_HOSTS = ("worker", "beat", "goodbye", "agent", "fetch")
"""What a host that came in over tcp may say: the learner is here."""


def main(boot: Boot) -> int:
    """Route until SIGTERM. Exit code 0; TrainingFailed when the run cannot go on."""
    arena = Arena.attach(boot.plan, boot.fds["arena"])
    broker = Broker(boot, arena)
    signal.signal(signal.SIGTERM, lambda *_: broker.stop())
    try:
        broker.run()
    finally:
        broker.close()
    return 0


class Broker:
    """Owned by the main thread."""

    def __init__(self, boot: Boot, arena: Arena) -> None:
        self._plan, self._arena = boot.plan, arena
        self._state = BrokerState(boot.plan, arena)
        self._events = EventPipe(boot.fds.get("events"))
        limits = boot.plan.config.limits
        self._liveness, self._heartbeat_s, self._judge_at = Liveness(limits), limits.heartbeat_s, 0.0
        self._hosts = Hosts(boot.plan.config.learner.host, limits.host_lease_s)
        self._doors = Doors(boot.endpoints, boot.listen, boot.keys)
        self._desk = WeightsDesk(WeightsReader(boot.fds["weights"]) if "weights" in boot.fds else None)
        self._claims_until: float | None = None
        if self._doors.ports and self._state.incarnation > 1:
            self._state.await_claims()
            self._claims_until = time.monotonic() + CLAIM_S
        self._wake_read, self._wake_write = os.pipe()
        self._poller = zmq.Poller()
        for source in (self._doors.segments, self._doors.control, *self._doors.guards, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        self._peers: dict[int, bytes] = {}
        self._learner: bytes | None = None
        self._agents: dict[str, bytes] = {}
        """Of other hosts."""
        self._incoming: list[ev.Event] = []
        self._forward: list[SlotRef] = []
        self._replies: set[int] = set()
        self._ask = self._stopping = False
        self.refused: Counter[str] = Counter()
        self._told_refused = 0

    def stop(self) -> None:
        """End after this round; safe in a signal handler."""
        self._stopping = True
        os.write(self._wake_write, b"x")

    def run(self) -> None:
        """One round after the other: drain everything, decide, answer each peer once."""
        if self._doors.ports:
            self._events.send("listening", ports=self._doors.ports)
        self._events.send("ready")
        while not self._stopping:
            ready = self._poller.poll(FETCH_POLL_MS if self._desk.waiting else POLL_MS)
            if any(source in self._doors.guards for source, _ in ready):
                self._doors.guard()
            self._round()
        self._see_off()
        self._state.accept_all_sealed()

    def _see_off(self) -> None:
        """Workers of other hosts have segments of their own: they are told to end, and may hand them over."""
        self._round()
        for peer in self._agents.values():
            self._to(peer, messages.pack("farewell"))
        until = time.monotonic() + SEE_OFF_S
        self._replies.update(self._state.end_remote())
        while self._state.has_remote and (left_s := until - time.monotonic()) > 0:
            self._answer()
            self._poller.poll(int(left_s * 1000) + 1)
            self._round()

    def close(self) -> None:
        """Let queued replies go for a moment, then close."""
        refused = self.refused + self._doors.guard()
        if refused:
            print(f"messages refused: {dict(refused)}", file=sys.stderr, flush=True)
        self._doors.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._arena.close()

    def _round(self) -> None:
        for frames in drain_frames(self._doors.segments, MOST_MESSAGES):
            self._guard(self._pushed, frames)
        for frames in drain_frames(self._doors.control, MOST_MESSAGES):
            self._guard(self._heard, frames)
        now = time.monotonic()
        if now >= self._judge_at:
            self._judge_at = now + self._heartbeat_s
            self._judge(now)
        incoming, self._incoming = self._incoming, []
        self._act(self._state.handle_all(incoming))
        self._answer()

    def _guard(self, take: Callable[[Any], None], parts: Any) -> None:
        """Input is never trusted: what is not understood is counted and forgotten."""
        try:
            take(parts)
        except WireError as error:
            self.refused[error.reason] += 1

    def _pushed(self, frames: Sequence[zmq.Frame]) -> None:
        if len(frames) > 1:
            self._delivered(frames)
            return
        index, spawn, refs = messages.unpack_descriptors(frames[0].bytes)
        self._incoming.append(ev.Sealed(index, spawn, refs))

    def _delivered(self, frames: Sequence[zmq.Frame]) -> None:
        """A whole segment of another host."""
        message = messages.unpack(frames[0].bytes)
        f = message.fields
        if message.kind != "segment" or f["layout"] != self._arena.layout.digest:
            raise WireError("segment", "not a segment of this run's layout")
        columns = messages.unpack_columns([frame.buffer for frame in frames[1:]], self._plan.columns)
        meta = messages.segment_meta(f["meta"])
        self._incoming.append(ev.Delivered(f["index"], f["spawn"], SlotRef(*f["ref"]), meta, columns))

    def _heard(self, frames: Sequence[zmq.Frame]) -> None:
        if len(frames) != 2:
            raise WireError("frames", f"{len(frames)} frames on control")
        peer, message = frames[0].bytes, messages.unpack(frames[1].bytes)
        f = message.fields
        user = user_of(frames[1]) if self._doors.ports else None
        if user is not None and message.kind not in FROM_OTHER_HOSTS:
            raise WireError("not from there", f"{message.kind} from {user}")
        if message.kind == "worker":
            if self._state.may_be(f["index"]):
                self._peers[f["index"]] = peer
            self._incoming.append(_worker_is(f))
        elif message.kind == "beat":
            self._beat(f)
        elif message.kind == "goodbye":
            self._incoming.append(ev.Goodbye(f["index"], f["spawn"]))
            self._liveness.forget(Member("worker", f["index"]))
        elif message.kind == "agent":
            self._heard_agent(peer, f, user)
        elif message.kind == "fetch":
            self._fetch(peer, Version(*f["version"]))
        else:
            self._heard_learner(peer, message.kind, f)

    def _fetch(self, peer: bytes, version: Version) -> None:
        """Only what has been announced can be on its way."""
        if self._state.notice is None or version > self._state.notice.version:
            raise WireError("version", f"{version} has not been announced")
        self._desk.ask(peer, version)

    def _heard_agent(self, peer: bytes, f: Mapping[str, Any], user: str | None) -> None:
        """Always answered: it is how an agent knows that this broker lives."""
        if user is not None and user != f["host"]:
            raise WireError("host", f"{user} speaks for {f['host']}")
        if user is not None and self._state.gave_up(f["workers"]):
            self._to(peer, messages.pack("farewell"))  # it was silent for too long: others have its vector envs
            return
        for index, spawn in f["alive"].items():
            if self._state.may_be(index):
                self._liveness.expect(Member("worker", index), spawn, index in f["ready"], time.monotonic())
        self._incoming.append(ev.HostIs(f["alive"], f["given_up"], f["host"], f["workers"]))
        if f["workers"]:
            if user is not None:
                self._agents[user] = peer
            if self._hosts.hear(f["host"], f["workers"], time.monotonic()):
                self._events.send("host_here", here=f["host"], workers=f["workers"])
        else:
            self._hosts.forget(f["host"])
        self._to(peer, messages.pack("welcome", broker=self._state.incarnation))
        if self._state.notice is not None:
            self._to(peer, messages.pack_notice(self._state.notice))

    def _heard_learner(self, peer: bytes, kind: str, f: Mapping[str, Any]) -> None:
        if kind not in ("learner", "announce", "answer"):
            raise WireError("kind", kind)
        repeated = kind == "announce" and self._knows(f["notice"]["version"])
        self._ask = self._ask or peer != self._learner or bool(self._state.requests) or repeated
        self._learner = peer
        if kind == "learner":
            self._incoming.append(ev.LearnerIs(f["updates"]))
        elif kind == "announce":
            self._incoming.append(ev.Announced(from_json(Notice, f["notice"]), f["back"]))
        else:
            order = order_from_data(f["order"])
            take_up = TakeUp(order.vector_env, order.incarnation, order.next_index, order.states or ())
            self._incoming.append(ev.Answered(take_up))

    def _knows(self, version: Sequence[int]) -> bool:
        """An announcement is answered only when it is repeated: the learner says it again while it is not sure."""
        return self._state.notice is not None and self._state.notice.version == tuple(version)

    def _beat(self, f: Mapping[str, Any]) -> None:
        member = Member(f["role"], f["index"])
        if member.role not in ROLES or not self._state.may_be(member.index):
            raise WireError("member", str(member))
        self._liveness.hear(Beat(member, f["spawn"], f["progress"]), time.monotonic())

    def _judge(self, now: float) -> None:
        """Tell the agent who changed; what is done about it is not for the broker to decide."""
        for judged in self._liveness.judge(self._has_work, now):
            self._events.send(
                "worker_state",
                member=judged.member.role,
                place=judged.member.index,
                spawn=judged.spawn,
                state=judged.state,
            )
            if judged.member.role == "worker" and judged.state == "lost":
                self._incoming.append(ev.Silent(judged.member.index, judged.spawn))
        for host, workers in self._hosts.lost(now):
            self._events.send("host_lost", lost=host)
            self._incoming.append(ev.HostIs({}, workers, host))
        if self._claims_until is not None and now >= self._claims_until:
            self._claims_until = None
            self._incoming.append(ev.WaitedEnough())
        self._tell_refused()

    def _tell_refused(self) -> None:
        """The user hears of strangers as they come, once per heartbeat at most."""
        counts = self.refused + self._doors.guard()
        if counts.total() != self._told_refused:
            self._told_refused = counts.total()
            self._events.send("refused", counts=dict(counts))

    def _has_work(self, member: Member) -> bool:
        return member.role == "worker" and self._state.has_work(member.index)

    def _act(self, actions: Sequence[ev.Action]) -> None:
        for action in actions:
            if isinstance(action, ev.Forward):
                self._forward += action.refs
            elif isinstance(action, ev.Reply):
                self._replies.add(action.index)
            elif isinstance(action, ev.Ask):
                self._ask = True
            elif isinstance(action, ev.Publish):
                send(self._doors.notices, messages.pack_notice(action.notice))
            elif isinstance(action, ev.Refuse):
                self.refused[action.reason] += 1
            else:
                raise TrainingFailed(action.cause)

    def _answer(self) -> None:
        if self._forward:
            refs = self._forward[:MOST_DESCRIPTORS]
            if send(self._doors.descriptors, messages.pack_descriptors(self._state.incarnation, 0, refs)):
                self._forward = self._forward[MOST_DESCRIPTORS:]
        for index in self._replies:
            standing = self._state.standing(index)
            if standing is not None and index in self._peers:
                self._to(self._peers[index], self._packed(standing))
        self._replies.clear()
        if self._ask and self._learner is not None:
            self._ask = False
            self._to(self._learner, self._books())
        for peer, reply in self._desk.served():
            self._to(peer, *reply)

    def _books(self) -> bytes:
        state = self._state
        requests = [[r.vector_env, r.incarnation, r.next_index] for r in state.requests]
        known = None if state.notice is None else list(state.notice.version)
        return messages.pack("books", broker=state.incarnation, requests=requests, known=known)

    def _packed(self, standing: ev.Standing) -> bytes:
        return messages.pack(
            "orders",
            spawn=standing.spawn,
            broker=self._state.incarnation,
            leases=[list(ref) for ref in standing.leases],
            acked=[[v, *at] for v, at in standing.acked.items()],
            serial=standing.serial,
            orders=None if standing.orders is None else [order_to_data(order) for order in standing.orders],
            stop=standing.stop,
        )

    def _to(self, peer: bytes, *frames: bytes) -> None:
        try:
            self._doors.control.send_multipart((peer, *frames), zmq.NOBLOCK)
        except zmq.Again:
            self.refused["no room to answer"] += 1


def _worker_is(f: Mapping[str, Any]) -> ev.WorkerIs:
    return ev.WorkerIs(
        f["index"],
        f["spawn"],
        [SlotRef(*ref) for ref in f["leases"]],
        dict(f["streams"]),
        f["broker"],
        f["serial"],
        f["remote"],
        [(v, index, rows) for v, index, rows in f["open"]],
    )
