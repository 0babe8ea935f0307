"""The experience stream between processes: slots in the arena, descriptors and control over ZeroMQ.

A worker of another host than the learner's has no arena: it keeps its segments until they are accepted, and sends them
whole.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from zmqrl.broker.events import AssignmentSnapshot
from zmqrl.bus_ends._arena_ends import ArenaSource, ArenaWriter, LeasedSink
from zmqrl.bus_ends._learner_channel import ZmqChannel
from zmqrl.bus_ends._record_fetching import RecordFetching
from zmqrl.bus_ends._remote_writer import RemoteWriter, make_sender
from zmqrl.bus_ends.base import Assignments, LearnerEnds, StreamAssignment, TakenSegment
from zmqrl.config.plan import Boot
from zmqrl.errors import WireError
from zmqrl.logs.events import EventPipe, Refusals
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, pack_descriptors, unpack, unpack_descriptors
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import SegmentId, SlotRef
from zmqrl.wire.heartbeat import HeartbeatThread
from zmqrl.wire.sockets import connect, drain, send

RESEND_HEARTBEATS = 2
MOST_RESEND_S = 120.0
"""Of whole segments, which may take long behind a thin wire."""
CLOSE_HEARTBEATS = 4


class ZmqSource(ArenaSource):
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


class Resending:
    """When segments that are not accepted are sent again. Pure.

    Whatever is sent waits behind what is in transit. A copy helps where the first one was lost, and otherwise delays
    all that follows it: behind a thin wire copies of whole segments would take its whole throughput. So the interval
    is twice the time that the last acceptance took, and doubles with each repetition.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        """The shortest and the longest interval."""
        self._first_s, self._most_s = first_s, most_s
        self._again_s = first_s
        self._due_at = 0.0
        self._sent_at: dict[SegmentId, float] = {}
        """When each segment that is not accepted was sent for the first time."""

    def is_due(self, now: float) -> bool:
        """Whether everything that is not accepted is to be sent again. `now`, here and below: monotonic seconds."""
        return now >= self._due_at

    def repeat(self) -> None:
        """Everything is going to be sent again; `sent` follows."""
        self._again_s = min(2 * self._again_s, self._most_s)

    def sent(self, ids: Iterable[SegmentId], now: float) -> None:
        """These were sent."""
        for id in ids:
            self._sent_at.setdefault(id, now)
        self._due_at = now + self._again_s

    def not_taken(self, now: float) -> None:
        """Some could not be sent: no copy of them is in transit."""
        self._again_s, self._due_at = self._first_s, now + self._first_s

    def accepted(self, ids: Iterable[SegmentId], now: float) -> None:
        """These were accepted, at least one."""
        took_s = max(now - self._sent_at.pop(id, now) for id in ids)
        self._again_s = min(max(self._first_s, 2 * took_s), self._most_s)
        self._due_at = now + self._again_s

    def restart(self, now: float) -> None:
        """What is in transit is of no use any more: it is for another broker, or under leases that are gone."""
        self._sent_at.clear()
        self._again_s, self._due_at = self._first_s, now


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
        if self._remote is None:
            self._descriptors = connect(self._context, zmq.PUSH, boot.endpoints.segments)
        else:
            self._sender = make_sender(boot, self._context)
        self._control = connect(self._context, zmq.DEALER, boot.endpoints.control, boot.keys)
        self._wake = boot.fds.get("wake")
        self._poller = zmq.Poller()
        self._poller.register(self._control, zmq.POLLIN)
        if self._wake is not None:
            os.set_blocking(self._wake, False)
            self._poller.register(self._wake, zmq.POLLIN)
        self._broker = 0
        self._reported_at = 0.0
        resend_s = RESEND_HEARTBEATS * self._heartbeat_s
        self._resending = Resending(resend_s, resend_s if self._remote is None else max(resend_s, MOST_RESEND_S))
        self._slots, self._vector_envs = boot.plan.slots, boot.plan.streams
        self._refusals = Refusals(EventPipe(boot.fds.get("events")))
        self._records = RecordFetching(resend_s, self._refusals.add)
        self._heartbeat = HeartbeatThread(
            self._context,
            boot.endpoints.control,
            ("worker", boot.index, boot.spawn),
            lambda: self._moves,
            self._heartbeat_s,
            boot.keys,
        )

    def poll(self, timeout_s: float) -> Assignments:
        self._flush()
        now = time.monotonic()
        deadline = now + timeout_s
        while True:
            if now >= self._reported_at + self._heartbeat_s or self._is_new_broker():
                self._report(now)
            self._request_records(now)
            changed = self._receive_pending(max(0.0, min(deadline, self._reported_at + self._heartbeat_s) - now))
            now = time.monotonic()
            if changed or now >= deadline:
                return self._assignments()

    def close(self) -> None:
        if not self._context.closed:
            self._flush()
            if self._remote is not None:
                self._wait_until_accepted()
                self._sender.close()
            send(self._control, pack(bus.WorkerExit(self._index, self._spawn)))
            self._heartbeat.close()
            self._context.destroy(linger=int(self._heartbeat_s * 1000))
            if self._arena is not None:
                self._arena.close()

    def _wait_until_accepted(self) -> None:
        """What is sealed here ends with this process; and the broker should know what was stepped beyond it."""
        until = time.monotonic() + CLOSE_HEARTBEATS * self._heartbeat_s
        while self._sealed and (left_s := until - time.monotonic()) > 0:
            self.poll(left_s)
        self._report(time.monotonic())

    def _push(self, refs: Sequence[SlotRef]) -> None:
        taken = True
        if self._remote is None:
            send(self._descriptors, pack_descriptors(self._index, self._spawn, refs))
        else:
            for ref in refs:
                taken = bool(self._sender.send(self._remote.frames(self._index, self._spawn, ref)))
                if not taken:
                    break  # a carrier that is away may report it seconds later; all that is sealed is sent again
        now = time.monotonic()
        if taken:
            self._resending.sent((self._sealed[ref] for ref in refs), now)
        else:
            self._resending.not_taken(now)

    def _is_new_broker(self) -> bool:
        return self._arena is not None and self._arena.broker_incarnation != self._broker

    def _report(self, now: float) -> None:
        """The worker's complete state, and what is unacknowledged. Leases of an older broker no longer count."""
        self._reported_at = now
        self._refusals.report()
        if self._arena is not None and self._is_new_broker():
            self._broker, self._serial = self._arena.broker_incarnation, -1
        report = bus.WorkerReport(
            index=self._index,
            spawn=self._spawn,
            broker=self._broker,
            serial=self._serial,
            remote=self._remote is not None,
            leases=[*self._free, *self._open, *self._sealed],
            streams=[bus.StreamAt(v, incarnation) for v, incarnation in self._reported_streams().items()],
            stopped=self._stopped(),
            open=[] if self._remote is None else self._remote.open_now(),
            segments=self._segments,
            busy_us=int(self._busy_s * 1e6),
        )
        send(self._control, pack(report))
        if self._sealed and self._resending.is_due(now):
            self._resending.repeat()
            self._push(sorted(self._sealed, key=lambda ref: self._sealed[ref]))

    def _receive_pending(self, wait_s: float) -> bool:
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
            try:
                self._receive(frame)
            except WireError as error:  # counted and forgotten: whatever matters is sent again
                self._refusals.add(error.reason)
        return True

    def _receive(self, frame: bytes) -> None:
        message = unpack(frame)
        if not isinstance(message, bus.WorkerAssignments | bus.Record):
            raise WireError("kind", bus.kind_of(message))
        if message.spawn != self._spawn:
            return
        if isinstance(message, bus.WorkerAssignments):
            self._receive_assignments(message)
        else:
            self._receive_record(message.parts)

    def _receive_assignments(self, message: bus.WorkerAssignments) -> None:
        if any(ref.slot >= self._slots for ref in message.leases):
            raise WireError("value", "assignments.leases: no such slot")
        if any(row.vector_env >= self._vector_envs for row in (*message.acked, *(message.streams or ()))):
            raise WireError("value", "assignments: no such vector env")
        if self._arena is not None and message.broker != self._broker:
            return
        now = time.monotonic()
        if message.broker != self._broker:
            self._broker, self._serial = message.broker, -1
            self._resending.restart(now)
        known_serial = self._serial
        acked = {row.vector_env: (row.incarnation, row.next_index) for row in message.acked}
        assignments = (
            None if message.streams is None or message.serial == known_serial else self._ready(message.streams)
        )
        before = set(self._sealed.values())
        self._apply(AssignmentSnapshot(message.spawn, message.leases, acked, assignments, message.serial))
        accepted = before.difference(self._sealed.values())
        if accepted:
            self._resending.accepted(accepted, now)
        if self._unpushed:  # under other leases than before
            self._resending.restart(now)
        self._stop = message.stop
        if self._serial != known_serial:
            self._reported_at = 0.0  # so that the assignments are not repeated in each reply

    def _ready(self, rows: Sequence[bus.AssignedStream]) -> list[StreamAssignment]:
        """Orders that can be followed now; those with a record wait until it was fetched, and are not named before.

        An assignment that is known is kept: it may not have been followed yet, and has no states when it comes again.
        """
        known = {(assignment.vector_env, assignment.incarnation): assignment for assignment in self._streams}
        ready, awaited = [], []
        for vector_env, incarnation, next_index, nbytes in rows:
            assignment = StreamAssignment(vector_env, incarnation, next_index, None if nbytes is None else ())
            if (vector_env, incarnation) in known:
                ready.append(known[vector_env, incarnation])
            elif nbytes:
                awaited.append((assignment, nbytes))
            else:
                ready.append(assignment)
        self._records.expect(awaited)
        return ready

    def _request_records(self, now: float) -> None:
        requested = self._records.due(now)
        if requested:
            send(self._control, pack(bus.RecordRequest(self._index, self._spawn, requested)))

    def _receive_record(self, parts: Sequence[bus.RecordPart]) -> None:
        self._moves += 1
        for assignment in self._records.take(parts):
            self._streams = (*self._streams, assignment)
            self._start_stream(assignment)
            self._reported_at = 0.0  # so that the broker forgets the record


def learner_ends(boot: Boot) -> LearnerEnds:
    """The learner's ends, from its boot (endpoints and inherited descriptors)."""
    channel = ZmqChannel(boot)
    return LearnerEnds(ZmqSource(boot, channel), channel)
