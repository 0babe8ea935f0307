"""A worker's end over ZeroMQ: control in both directions, and the sink of a worker with the arena."""

from __future__ import annotations

import math
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from zmqrl.broker.env_records import RecordFetching
from zmqrl.broker.events import Assignments, AssignmentSnapshot, StreamAssignment
from zmqrl.bus_ends.worker_end import ArenaWriter, LeasedSink, SegmentWriter
from zmqrl.config.plan import Boot
from zmqrl.errors import WireError
from zmqrl.logs.events import EventPipe, Refusals
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, pack_descriptors, unpack
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import SegmentId, SlotRef
from zmqrl.wire.heartbeat import HeartbeatThread
from zmqrl.wire.sockets import connect, drain, send

RESEND_HEARTBEATS = 2


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
    """What is the same for a worker with an arena and for one without."""

    is_remote = False

    def __init__(self, boot: Boot, context: zmq.Context[Any], writer: SegmentWriter, most_resend_s: float) -> None:
        """`most_resend_s`: the longest interval between two copies of a segment that is not accepted."""
        super().__init__(writer)
        self._context = context
        self._index, self._spawn = boot.index, boot.spawn
        self._heartbeat_s = boot.plan.config.limits.heartbeat_s
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
        self._resending = Resending(resend_s, max(resend_s, most_resend_s))
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

    def _is_new_broker(self) -> bool:
        """Whether another broker than that of the newest assignments is known to be there."""
        return False

    @abstractmethod
    def _follows(self, broker: int, now: float) -> bool:
        """Whether assignments of this broker count. `now` in monotonic seconds."""

    def _open_now(self) -> list[bus.OpenRows]:
        """What the broker cannot read in the arena: rows that would be lost with this worker."""
        return []

    def _finish(self) -> None:
        """Called before the exit is reported."""

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
            self._finish()
            send(self._control, pack(bus.WorkerExit(self._index, self._spawn)))
            self._heartbeat.close()
            self._context.destroy(linger=int(self._heartbeat_s * 1000))

    def _report(self, now: float) -> None:
        """The worker's complete state, and what is unacknowledged."""
        self._reported_at = now
        self._refusals.report()
        report = bus.WorkerReport(
            index=self._index,
            spawn=self._spawn,
            broker=self._broker,
            serial=self._serial,
            remote=self.is_remote,
            leases=[*self._free, *self._open, *self._sealed],
            streams=[bus.StreamAt(v, incarnation) for v, incarnation in self._reported_streams().items()],
            stopped=self._stopped(),
            open=self._open_now(),
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
        now = time.monotonic()
        if not self._follows(message.broker, now):
            return
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


class LocalSink(ZmqSink):
    """Sink of a worker with the arena: it sends descriptors."""

    def __init__(self, boot: Boot) -> None:
        self._arena = Arena.attach(boot.plan, boot.fds["arena"])
        context: zmq.Context[Any] = zmq.Context()
        self._descriptors = connect(context, zmq.PUSH, boot.endpoints.segments)
        super().__init__(boot, context, ArenaWriter(self._arena), most_resend_s=0.0)

    def close(self) -> None:
        if not self._context.closed:
            super().close()
            self._arena.close()

    def _push(self, refs: Sequence[SlotRef]) -> None:
        send(self._descriptors, pack_descriptors(self._index, self._spawn, refs))
        self._resending.sent((self._sealed[ref] for ref in refs), time.monotonic())

    def _is_new_broker(self) -> bool:
        return self._arena.broker_incarnation != self._broker

    def _report(self, now: float) -> None:
        """Leases of an older broker no longer count."""
        if self._is_new_broker():
            self._broker, self._serial = self._arena.broker_incarnation, -1
        super()._report(now)

    def _follows(self, broker: int, now: float) -> bool:
        return broker == self._broker
