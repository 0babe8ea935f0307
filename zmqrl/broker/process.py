"""The broker process: one poll loop that moves bytes between sockets and `BrokerState`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.liveness import Beat, Liveness, Member
from zmqrl.broker.orders import TakeUp, order_from_data, order_to_data
from zmqrl.broker.state import BrokerState
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.errors import TrainingFailed, WireError
from zmqrl.logs.events import EventPipe
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, SlotRef
from zmqrl.wire import messages
from zmqrl.wire.sockets import bind, drain_frames, drain_multipart, send

POLL_MS = 500
MOST_MESSAGES = 1000
"""Of one socket in one round."""
MOST_DESCRIPTORS = 10_000
ROLES = ("worker", "learner")


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
        self._context: zmq.Context[Any] = zmq.Context()
        ends = boot.endpoints
        for endpoint in (ends.segments, ends.descriptors, ends.notices, ends.control):
            self._make_way(endpoint)
        self._segments = bind(self._context, zmq.PULL, ends.segments)
        self._descriptors = bind(self._context, zmq.PUSH, ends.descriptors)
        self._notices = bind(self._context, zmq.PUB, ends.notices)
        self._control = bind(self._context, zmq.ROUTER, ends.control)
        self._wake_read, self._wake_write = os.pipe()
        self._poller = zmq.Poller()
        for source in (self._segments, self._control, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        self._peers: dict[int, bytes] = {}
        self._learner: bytes | None = None
        self._incoming: list[ev.Event] = []
        self._forward: list[SlotRef] = []
        self._replies: set[int] = set()
        self._ask = self._stopping = False
        self.refused: Counter[str] = Counter()

    def stop(self) -> None:
        """End after this round; safe in a signal handler."""
        self._stopping = True
        os.write(self._wake_write, b"x")

    def run(self) -> None:
        """One round after the other: drain everything, decide, answer each peer once."""
        self._events.send("ready")
        while not self._stopping:
            self._poller.poll(POLL_MS)
            self._round()
        self._round()
        self._state.accept_all_sealed()

    def close(self) -> None:
        """Let queued replies go for a moment, then close."""
        if self.refused:
            print(f"messages refused: {dict(self.refused)}", file=sys.stderr, flush=True)
        self._context.destroy(linger=100)
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._arena.close()

    @staticmethod
    def _make_way(endpoint: str) -> None:
        """A broker that was killed leaves its socket file."""
        url = urlparse(endpoint)
        if url.scheme == "ipc" and os.path.exists(url.path):
            os.unlink(url.path)

    def _round(self) -> None:
        for frames in drain_frames(self._segments, MOST_MESSAGES):
            self._guard(self._pushed, frames)
        for parts in drain_multipart(self._control, MOST_MESSAGES):
            self._guard(self._heard, parts)
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

    def _heard(self, parts: Sequence[bytes]) -> None:
        if len(parts) != 2:
            raise WireError("frames", f"{len(parts)} frames on control")
        peer, message = parts[0], messages.unpack(parts[1])
        f = message.fields
        if message.kind == "worker":
            if f["index"] < self._plan.total_workers:
                self._peers[f["index"]] = peer
            self._incoming.append(_worker_is(f))
        elif message.kind == "beat":
            self._beat(f)
        elif message.kind == "goodbye":
            self._incoming.append(ev.Goodbye(f["index"], f["spawn"]))
            self._liveness.forget(Member("worker", f["index"]))
        elif message.kind == "agent":
            self._incoming.append(ev.HostIs(f["alive"], f["given_up"], f["host"]))
            if self._state.notice is not None:
                self._to(peer, messages.pack_notice(self._state.notice))
        else:
            self._heard_learner(peer, message.kind, f)

    def _heard_learner(self, peer: bytes, kind: str, f: Mapping[str, Any]) -> None:
        if kind not in ("learner", "announce", "answer"):
            raise WireError("kind", kind)
        repeated = kind == "announce" and self._knows(f["notice"]["version"])
        self._ask = self._ask or peer != self._learner or bool(self._state.requests) or repeated
        self._learner = peer
        if kind == "learner":
            self._incoming.append(ev.LearnerIs(f["updates"]))
        elif kind == "announce":
            self._incoming.append(ev.Announced(from_json(Notice, f["notice"])))
        else:
            order = order_from_data(f["order"])
            take_up = TakeUp(order.vector_env, order.incarnation, order.next_index, order.states or ())
            self._incoming.append(ev.Answered(take_up))

    def _knows(self, version: Sequence[int]) -> bool:
        """An announcement is answered only when it is repeated: the learner says it again while it is not sure."""
        return self._state.notice is not None and self._state.notice.version == tuple(version)

    def _beat(self, f: Mapping[str, Any]) -> None:
        member = Member(f["role"], f["index"])
        if member.role not in ROLES or member.index >= max(1, self._plan.total_workers):
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
                send(self._notices, messages.pack_notice(action.notice))
            elif isinstance(action, ev.Refuse):
                self.refused[action.reason] += 1
            else:
                raise TrainingFailed(action.cause)

    def _answer(self) -> None:
        if self._forward:
            refs = self._forward[:MOST_DESCRIPTORS]
            if send(self._descriptors, messages.pack_descriptors(self._state.incarnation, 0, refs)):
                self._forward = self._forward[MOST_DESCRIPTORS:]
        for index in self._replies:
            standing = self._state.standing(index)
            if standing is not None and index in self._peers:
                self._to(self._peers[index], self._packed(standing))
        self._replies.clear()
        if self._ask and self._learner is not None:
            self._ask = False
            self._to(self._learner, self._books())

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
            stop=False,
        )

    def _to(self, peer: bytes, frame: bytes) -> None:
        try:
            self._control.send_multipart((peer, frame), zmq.NOBLOCK)
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
