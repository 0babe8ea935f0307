"""The broker process: one poll loop that moves bytes between sockets and `BrokerState`."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlparse

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.orders import TakeUp, order_from_data, order_to_data
from zmqrl.broker.state import BrokerState
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import TrainingFailed, WireError
from zmqrl.logs.events import EventPipe
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, SlotRef
from zmqrl.wire import messages
from zmqrl.wire.sockets import bind, drain, send

POLL_MS = 500


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
        self._arena = arena
        self._state = BrokerState(boot.plan, arena)
        self._events = EventPipe(boot.fds.get("events"))
        self._context: zmq.Context[Any] = zmq.Context()
        for endpoint in (
            boot.endpoints.segments,
            boot.endpoints.descriptors,
            boot.endpoints.notices,
            boot.endpoints.control,
        ):
            self._make_way(endpoint)
        self._segments = bind(self._context, zmq.PULL, boot.endpoints.segments)
        self._descriptors = bind(self._context, zmq.PUSH, boot.endpoints.descriptors)
        self._notices = bind(self._context, zmq.PUB, boot.endpoints.notices)
        self._control = bind(self._context, zmq.ROUTER, boot.endpoints.control)
        self._wake_read, self._wake_write = os.pipe()
        self._poller = zmq.Poller()
        for source in (self._segments, self._control, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        self._peers: dict[int, bytes] = {}
        self._learner: bytes | None = None
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
        for frame in drain(self._segments):
            self._guard(self._sealed, frame)
        while True:
            try:
                parts = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._guard(self._heard, *parts)
        self._answer()

    def _guard(self, take: Any, *frames: bytes) -> None:
        try:
            take(*frames)
        except WireError as error:
            self.refused[error.reason] += 1
        except TypeError as error:  # not as many frames as a message has
            if len(frames) == 2:
                raise
            self.refused["frames"] += 1
            del error

    def _sealed(self, frame: bytes) -> None:
        index, spawn, refs = messages.unpack_descriptors(frame)
        self._handle(ev.Sealed(index, spawn, refs))

    def _heard(self, peer: bytes, frame: bytes) -> None:
        message = messages.unpack(frame)
        f = message.fields
        if message.kind == "worker":
            self._peers[f["index"]] = peer
            refs = [SlotRef(*r) for r in f["leases"]]
            self._handle(ev.WorkerIs(f["index"], f["spawn"], refs, dict(f["streams"])))
        elif message.kind == "goodbye":
            self._handle(ev.Goodbye(f["index"], f["spawn"]))
        elif message.kind == "agent":
            self._handle(ev.HostIs(f["alive"], f["given_up"]))
            if self._state.notice is not None:
                self._to(peer, messages.pack_notice(self._state.notice))
        else:
            self._heard_learner(peer, message.kind, f)

    def _heard_learner(self, peer: bytes, kind: str, f: Mapping[str, Any]) -> None:
        if kind not in ("learner", "announce", "answer"):
            raise WireError("kind", kind)
        self._ask = self._ask or peer != self._learner or bool(self._state.requests) or kind == "announce"
        self._learner = peer
        if kind == "learner":
            self._handle(ev.LearnerIs(f["updates"]))
        elif kind == "announce":
            self._handle(ev.Announced(from_json(Notice, f["notice"])))
        else:
            order = order_from_data(f["order"])
            self._handle(ev.Answered(TakeUp(order.vector_env, order.incarnation, order.next_index, order.states or ())))

    def _handle(self, event: ev.Event) -> None:
        for action in self._state.handle(event):
            if isinstance(action, ev.Forward):
                self._forward += action.refs
            elif isinstance(action, ev.Reply):
                self._replies.add(action.index)
            elif isinstance(action, ev.Ask):
                self._ask = True
            elif isinstance(action, ev.Publish):
                send(self._notices, messages.pack_notice(action.notice))
            else:
                raise TrainingFailed(action.cause)

    def _answer(self) -> None:
        if self._forward:
            if send(self._descriptors, messages.pack_descriptors(self._state.incarnation, 0, self._forward)):
                self._forward = []
        for index in self._replies:
            standing = self._state.standing(index)
            if standing is not None and index in self._peers:
                self._to(self._peers[index], self._packed(standing))
        self._replies.clear()
        if self._ask and self._learner is not None:
            self._ask = False
            requests = [[r.vector_env, r.incarnation, r.next_index] for r in self._state.requests]
            known = None if self._state.notice is None else to_json(self._state.notice)
            self._to(
                self._learner, messages.pack("books", broker=self._state.incarnation, requests=requests, known=known)
            )

    def _packed(self, standing: ev.Standing) -> bytes:
        return messages.pack(
            "orders",
            spawn=standing.spawn,
            broker=self._state.incarnation,
            leases=[list(ref) for ref in standing.leases],
            acked=[[v, *at] for v, at in standing.acked.items()],
            orders=[order_to_data(order) for order in standing.orders],
            stop=False,
        )

    def _to(self, peer: bytes, frame: bytes) -> None:
        try:
            self._control.send_multipart((peer, frame), zmq.NOBLOCK)
        except zmq.Again:
            self.refused["no room to answer"] += 1
