"""The learner's ends over ZeroMQ: descriptors of the broker name the slots to read, and messages go over control."""

from __future__ import annotations

import math
import time
from typing import Any

import zmq

from zmqrl.broker.env_records import PART_BYTES, pack_record
from zmqrl.broker.events import Handover, HandoverRequest
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource, TakenSegment
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError, WireError
from zmqrl.logs.events import EventPipe, Refusals
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, unpack, unpack_descriptors
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice
from zmqrl.wire.heartbeat import HeartbeatThread
from zmqrl.wire.sockets import connect, drain, send


class ZmqChannel(LearnerChannel):
    """Versions, progress and answers out, handover requests in. `ZmqSource.take` drives it.

    It holds what both of the learner's ends use: the context and the arena.
    """

    def __init__(self, boot: Boot) -> None:
        if "arena" not in boot.fds:
            raise ConfigError(f"host {boot.host!r} has no arena: the learner runs on the broker's host")
        self.arena = Arena.attach(boot.plan, boot.fds["arena"])
        super().__init__(self.arena)
        self._heartbeat_s = boot.plan.config.limits.heartbeat_s
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = connect(self.context, zmq.DEALER, boot.endpoints.control)
        """To poll; readable means `drain`."""
        self.refusals = Refusals(EventPipe(boot.fds.get("events")))
        self.moves = 0
        """Progress of the learner's main thread, which its heartbeats report."""
        self.heartbeat_at = 0.0
        """When `send_due` has something to send again, in monotonic seconds."""
        self._known = True
        self._owes_report = False
        self._requests: list[HandoverRequest] = []
        self._records: dict[HandoverRequest, tuple[int, bytes]] = {}
        """Answered, with the index to continue at: packed until the broker has every part."""
        self._offsets: dict[HandoverRequest, int] = {}
        """Which part of each answer the broker requested last."""
        self._requested = False
        self._progress = (0, 0)
        self._heartbeat = HeartbeatThread(
            self.context,
            boot.endpoints.control,
            ("learner", boot.index, boot.spawn),
            lambda: self.moves,
            self._heartbeat_s,
        )

    # the learner

    def announce(self, notice: Notice) -> None:
        self._note(notice)
        self._known = self._owes_report = False
        send(self.socket, pack(bus.Announce(notice, None if self._back is None else list(self._back))))

    def report(self, env_steps: int, updates: int) -> None:
        if self._owes_report or (env_steps, updates) != self._progress:
            self._progress = (env_steps, updates)
            self._report()

    def handover_requests(self) -> list[HandoverRequest]:
        return list(self._requests)

    def answer(self, handover: Handover) -> None:
        for request in [r for r in self._requests if r.vector_env == handover.vector_env]:
            self._requests.remove(request)
            if request.incarnation == handover.incarnation:
                self._records[request] = (handover.next_index, pack_record(handover.states))
                self._send_part(request)

    def close(self) -> None:
        self._heartbeat.close()
        self.context.destroy(linger=int(self._heartbeat_s * 1000))
        self.arena.close()

    # the source

    def send_due(self, now: float) -> bool:
        """Send what is owed; whether a heartbeat was due, with which everything unconfirmed is repeated."""
        if now < self.heartbeat_at:
            if self._owes_report:
                self._report()
            return False
        self.heartbeat_at = now + self._heartbeat_s
        self._report()
        self.refusals.report()
        if self._notice is not None and not self._known:
            self.announce(self._notice)
        return True

    def owe_report(self) -> None:
        """Slots became free: the broker should look."""
        self._owes_report = True

    def broker_replaced(self) -> None:
        """Another broker: it does not know the current version."""
        self._known = self._notice is None

    def pop_requested(self) -> bool:
        """Whether handover requests came since the last call."""
        requested, self._requested = self._requested, False
        return requested

    def drain(self) -> None:
        """Read what came. What is not understood is counted and discarded: whatever matters is sent again."""
        for frame in drain(self.socket):
            try:
                self._receive(frame)
            except WireError as error:
                self.refusals.add(error.reason)

    def _receive(self, frame: bytes) -> None:
        message = unpack(frame)
        if not isinstance(message, bus.BrokerStatus):
            raise WireError("kind", bus.kind_of(message))
        if any(row.vector_env >= self.arena.layout.streams for row in message.requests):
            raise WireError("value", "broker_status.requests: no such vector env")
        self._receive_status(message)

    def _receive_status(self, status: bus.BrokerStatus) -> None:
        """What the broker requests: of an answer that was given, its next part follows at once."""
        self._offsets = {HandoverRequest(*row[:3]): row[3] for row in status.requests}
        self._records = {r: record for r, record in self._records.items() if r in self._offsets}
        self._requests = [r for r in self._offsets if r not in self._records]
        self._requested = bool(self._requests)
        left = PART_BYTES
        for request in list(self._records):
            left -= self._send_part(request) if left > 0 else 0
        self._known = self._notice is None or status.known == self._notice.version

    def _send_part(self, request: HandoverRequest) -> int:
        """Bytes sent of the record. It is discarded after its last part: if that is lost, it is requested again."""
        next_index, record = self._records[request]
        offset = self._offsets.get(request, 0)
        content = record[offset : offset + PART_BYTES]
        part = bus.AnswerPart(request.vector_env, request.incarnation, next_index, len(record), offset, content)
        send(self.socket, pack(bus.HandoverAnswer(part)))
        if offset + len(content) >= len(record):
            del self._records[request]
        return len(content)

    def _report(self) -> None:
        self._owes_report = False
        send(self.socket, pack(bus.LearnerReport(*self._progress)))


class ZmqSource(SegmentSource):
    """The learner's end: slots of the arena, named by descriptors. It waits on the channel's socket too."""

    def __init__(self, boot: Boot, channel: ZmqChannel) -> None:
        super().__init__(channel.arena)
        self._channel = channel
        self._descriptors = connect(channel.context, zmq.PULL, boot.endpoints.descriptors)
        self._poller = zmq.Poller()
        for socket in (self._descriptors, channel.socket):
            self._poller.register(socket, zmq.POLLIN)
        self._broker = -1
        self._came = False

    def take(self, timeout_s: float) -> list[TakenSegment]:
        deadline = time.monotonic() + timeout_s
        channel = self._channel
        channel.moves += 1
        while True:
            now = time.monotonic()
            if channel.send_due(now):
                if not self._came:  # a descriptor may have been lost on its way
                    self._scan()
                self._came = False
            self._drain()
            requested = channel.pop_requested()
            if self._new or requested or now >= deadline:
                return self._pop_new()
            self._poller.poll(math.ceil(max(0.0, min(deadline, channel.heartbeat_at) - now) * 1000))

    def close(self) -> None:
        self._descriptors.close()
        self._new.clear()
        self._arena.close()

    def _released(self) -> None:
        self._channel.owe_report()  # any message makes the broker look; one usually follows at once

    def _drain(self) -> None:
        if self._arena.broker_incarnation != self._broker:
            self._broker = self._arena.broker_incarnation
            self._channel.broker_replaced()
            self._scan()
        for frame in drain(self._descriptors):
            self._came = True
            try:
                self._receive_descriptors(frame)
            except WireError as error:  # counted and discarded: whatever matters is sent again
                self._channel.refusals.add(error.reason)
        self._channel.drain()

    def _receive_descriptors(self, frame: bytes) -> None:
        self._offer(unpack_descriptors(frame)[2])


def learner_ends(boot: Boot) -> LearnerEnds:
    """The learner's ends, from its boot (endpoints and inherited descriptors)."""
    channel = ZmqChannel(boot)
    return LearnerEnds(ZmqSource(boot, channel), channel)
