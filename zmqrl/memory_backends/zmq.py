"""The experience stream between processes: slots in the arena, descriptors and control over ZeroMQ.

A worker of another host than the learner's has no arena: it keeps its segments until they are booked, and sends them
whole.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from zmqrl.broker.events import Standing
from zmqrl.broker.orders import order_from_data, order_to_data
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.memory_backends._arena_ends import ArenaSource, ArenaWriter, LeasedSink
from zmqrl.memory_backends._remote_writer import RemoteWriter
from zmqrl.memory_backends.base import (
    MemoryBackend,
    Orders,
    SegmentSink,
    SegmentSource,
    StreamOrder,
    TakenSegment,
    TakeUp,
    TakeUpRequest,
)
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, SlotRef
from zmqrl.wire import messages
from zmqrl.wire.heartbeat import Heartbeat
from zmqrl.wire.sockets import connect, drain, send

RESEND_HEARTBEATS = 2
LAST_WORDS_HEARTBEATS = 4


class ZmqSource(ArenaSource):
    """The learner's end."""

    def __init__(self, boot: Boot) -> None:
        if "arena" not in boot.fds:
            raise ConfigError(f"host {boot.host!r} has no arena: the learner runs on the broker's host")
        super().__init__(Arena.attach(boot.plan, boot.fds["arena"]))
        self._heartbeat_s = boot.plan.config.limits.heartbeat_s
        self._context: zmq.Context[Any] = zmq.Context()
        self._descriptors = connect(self._context, zmq.PULL, boot.endpoints.descriptors)
        self._control = connect(self._context, zmq.DEALER, boot.endpoints.control)
        self._poller = zmq.Poller()
        for socket in (self._descriptors, self._control):
            self._poller.register(socket, zmq.POLLIN)
        self._broker = -1
        self._notice: Notice | None = None
        self._known = True
        self._owes_report = False
        self._requests: list[TakeUpRequest] = []
        self._asked = self._came = False
        self._progress = (0, 0)
        self._moves = 0
        self._heartbeat_at = 0.0
        who = ("learner", boot.index, boot.spawn)
        self._heartbeat = Heartbeat(self._context, boot.endpoints.control, who, lambda: self._moves, self._heartbeat_s)

    def take(self, timeout_s: float) -> list[TakenSegment]:
        deadline = time.monotonic() + timeout_s
        self._moves += 1
        while True:
            now = time.monotonic()
            if now >= self._heartbeat_at:
                self._beat(now)
            elif self._owes_report:
                self._report()
            self._drain()
            if self._fresh or self._asked or now >= deadline:
                self._asked = False
                return self._all_fresh()
            self._poller.poll(math.ceil(max(0.0, min(deadline, self._heartbeat_at) - now) * 1000))

    def announce(self, notice: Notice) -> None:
        if self._notice is not None and self._notice.version != notice.version:
            self._back = None
        self._notice, self._known, self._owes_report = notice, False, False
        send(self._control, messages.pack("announce", notice=to_json(notice), back=self._back))

    def report(self, env_steps: int, updates: int) -> None:
        if self._owes_report or (env_steps, updates) != self._progress:
            self._progress = (env_steps, updates)
            self._report()

    def take_up_requests(self) -> list[TakeUpRequest]:
        return list(self._requests)

    def answer(self, take_up: TakeUp) -> None:
        order = StreamOrder(take_up.vector_env, take_up.incarnation, take_up.next_index, take_up.states)
        send(self._control, messages.pack("answer", order=order_to_data(order)))
        self._requests = [r for r in self._requests if r.vector_env != take_up.vector_env]

    def close(self) -> None:
        self._heartbeat.close()
        self._context.destroy(linger=int(self._heartbeat_s * 1000))
        self._fresh.clear()
        self._arena.close()

    def _released(self) -> None:
        self._owes_report = True  # any message makes the broker look; one usually follows at once

    def _report(self) -> None:
        self._owes_report = False
        send(self._control, messages.pack("learner", env_steps=self._progress[0], updates=self._progress[1]))

    def _beat(self, now: float) -> None:
        self._heartbeat_at = now + self._heartbeat_s
        self._report()
        if self._notice is not None and not self._known:
            self.announce(self._notice)
        if not self._came:  # a descriptor may have been lost on its way
            self._scan()
        self._came = False

    def _drain(self) -> None:
        if self._arena.broker_incarnation != self._broker:
            self._broker = self._arena.broker_incarnation
            self._known = self._notice is None
            self._scan()
        for frame in drain(self._descriptors):
            self._came = True
            self._offer(messages.unpack_descriptors(frame)[2])
        for frame in drain(self._control):
            message = messages.unpack(frame)
            if message.kind == "books":
                self._requests = [TakeUpRequest(*r) for r in message.fields["requests"]]
                self._asked = bool(self._requests)
                known = message.fields["known"]
                self._known = self._notice is None or (known is not None and tuple(known) == self._notice.version)


class ZmqSink(LeasedSink):
    """A worker's end: into the arena where there is one, else whole over the wire."""

    def __init__(self, boot: Boot) -> None:
        self._arena = Arena.attach(boot.plan, boot.fds["arena"]) if "arena" in boot.fds else None
        self._remote = RemoteWriter(boot.plan) if self._arena is None else None
        writer = self._remote or (ArenaWriter(self._arena) if self._arena else None)
        assert writer is not None
        super().__init__(writer)
        self._index, self._spawn = boot.index, boot.spawn
        self._heartbeat_s = boot.plan.config.limits.heartbeat_s
        self._context: zmq.Context[Any] = zmq.Context()
        self._segments = connect(self._context, zmq.PUSH, boot.endpoints.segments, boot.keys)
        self._control = connect(self._context, zmq.DEALER, boot.endpoints.control, boot.keys)
        self._wake = boot.fds.get("wake")
        self._poller = zmq.Poller()
        self._poller.register(self._control, zmq.POLLIN)
        if self._wake is not None:
            os.set_blocking(self._wake, False)
            self._poller.register(self._wake, zmq.POLLIN)
        self._broker = 0
        self._said_at = 0.0
        self._resend_at = 0.0
        who, endpoint = ("worker", boot.index, boot.spawn), boot.endpoints.control
        self._heartbeat = Heartbeat(self._context, endpoint, who, lambda: self._moves, self._heartbeat_s, boot.keys)

    def poll(self, timeout_s: float) -> Orders:
        self._flush()
        now = time.monotonic()
        deadline = now + timeout_s
        while True:
            if now >= self._said_at + self._heartbeat_s or self._is_new_broker():
                self._say(now)
            changed = self._take_in(max(0.0, min(deadline, self._said_at + self._heartbeat_s) - now))
            now = time.monotonic()
            if changed or now >= deadline:
                return self._orders()

    def close(self) -> None:
        if not self._context.closed:
            self._flush()
            if self._remote is not None:
                self._wait_until_booked()
            send(self._control, messages.pack("goodbye", index=self._index, spawn=self._spawn))
            self._heartbeat.close()
            self._context.destroy(linger=int(self._heartbeat_s * 1000))
            if self._arena is not None:
                self._arena.close()

    def _wait_until_booked(self) -> None:
        """What is sealed here ends with this process; and the broker should know what was stepped beyond it."""
        until = time.monotonic() + LAST_WORDS_HEARTBEATS * self._heartbeat_s
        while self._sealed and (left_s := until - time.monotonic()) > 0:
            self.poll(left_s)
        self._say(time.monotonic())

    def _push(self, refs: Sequence[SlotRef]) -> None:
        if self._remote is None:
            send(self._segments, messages.pack_descriptors(self._index, self._spawn, refs))
        else:
            for ref in refs:
                self._remote.send(self._segments, self._index, self._spawn, ref)
        self._resend_at = time.monotonic() + RESEND_HEARTBEATS * self._heartbeat_s

    def _is_new_broker(self) -> bool:
        return self._arena is not None and self._arena.broker_incarnation != self._broker

    def _say(self, now: float) -> None:
        """Our absolute word, and what stayed unacknowledged. What an older broker gave from now on does not count."""
        self._said_at = now
        if self._arena is not None and self._is_new_broker():
            self._broker, self._serial = self._arena.broker_incarnation, -1
        leases = [list(ref) for ref in (*self._free, *self._open, *self._sealed)]
        send(
            self._control,
            messages.pack(
                "worker",
                index=self._index,
                spawn=self._spawn,
                broker=self._broker,
                serial=self._serial,
                remote=self._remote is not None,
                leases=leases,
                streams=[[v, incarnation] for v, incarnation in self._named().items()],
                stopped=self._stopped(),
                open=[] if self._remote is None else self._remote.open_now(),
            ),
        )
        if self._sealed and now >= self._resend_at:
            self._push(sorted(self._sealed, key=lambda ref: self._sealed[ref]))

    def _take_in(self, wait_s: float) -> bool:
        """Whether anything came."""
        came = self._poller.poll(math.ceil(wait_s * 1000))
        if not came:
            return False
        if self._wake is not None:
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass
        for frame in drain(self._control):
            message = messages.unpack(frame)
            if message.kind == "orders" and message.fields["spawn"] == self._spawn:
                self._hear(message.fields)
        return True

    def _hear(self, f: Mapping[str, Any]) -> None:
        if self._arena is not None and f["broker"] != self._broker:
            return
        if f["broker"] != self._broker:
            self._broker, self._serial = f["broker"], -1
        known_serial = self._serial
        acked = {v: (incarnation, index) for v, incarnation, index in f["acked"]}
        orders = None if f["orders"] is None else tuple(order_from_data(o) for o in f["orders"])
        self._stand(Standing(f["spawn"], [SlotRef(*r) for r in f["leases"]], acked, orders, f["serial"]))
        self._stop = f["stop"]
        if self._serial != known_serial:
            self._said_at = 0.0  # so that the orders are not repeated in each reply


class ZmqBackend(MemoryBackend):
    """Broker and arena; the kind of sync and async."""

    @classmethod
    def source(cls, boot: Boot) -> SegmentSource:
        return ZmqSource(boot)

    @classmethod
    def sink(cls, boot: Boot) -> SegmentSink:
        return ZmqSink(boot)
