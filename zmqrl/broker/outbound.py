"""Replies of the broker: each peer at most once per round, always the current state, never the history."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.env_records import PART_BYTES, HandoverParts, PackedRecords
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_server import WeightsServer
from zmqrl.errors import TrainingFailed
from zmqrl.messages import bus, frames
from zmqrl.types import SlotRef
from zmqrl.wire.sockets import send

MOST_DESCRIPTORS = 10_000
MOST_LINES = 20
WINDOW_S = 10.0


class OutboundReplies:
    """Peer ids and pending replies. Never blocks: a peer whose queue is full repeats its request."""

    def __init__(self, sockets: BrokerSockets, state: BrokerState, weights: WeightsServer) -> None:
        self._sockets, self._state, self._weights = sockets, state, weights
        self.refused: Counter[str] = Counter()
        """Counts by reason: what the state refused, and replies that could not be sent."""
        self._learner: bytes | None = None
        self._agents: dict[str, bytes] = {}
        """Connections of the agents of other hosts, by host."""
        self._forward: list[SlotRef] = []
        self._pending: set[int] = set()
        self._requested_records: dict[int, tuple[int, Sequence[bus.RecordAt]]] = {}
        """Requests by worker: its spawn, and the parts of records that it requested last."""
        self._packed = PackedRecords()
        self.handover_parts = HandoverParts()
        """The learner's answers, as far as they have come."""
        self._learner_waits = False
        self.drops = DropLog()
        self.relieved: list[ev.Relieved] = []
        """Relieved workers of the rounds since the caller took them."""

    def note_agent(self, host: str, peer: bytes) -> None:
        """The connection of the last report of another host's agent."""
        self._agents[host] = peer

    def note_learner(self, peer: bytes, answer: bool) -> None:
        """The connection of the learner's last message; it is answered in this round if it is new, or when `answer`."""
        self._learner_waits = self._learner_waits or answer or peer != self._learner
        self._learner = peer

    def request_records(self, index: int, spawn: int, records: Sequence[bus.RecordAt]) -> None:
        """A worker lacks these parts of its assignments' records."""
        self._requested_records[index] = (spawn, records)

    def welcome(self, peer: bytes, hanging: Sequence[bus.Hanging] = ()) -> None:
        """To an agent, at once: this broker is there, these processes of its host hang, and this version is there."""
        self._to(peer, frames.pack(bus.Welcome(self._state.incarnation, list(hanging))))
        if self._state.notice is not None:
            self._to(peer, frames.pack(bus.CurrentNotice(self._state.notice)))

    def echo(self, peer: bytes, message: bus.PathProbe) -> None:
        """To an agent, at once: messages of that length arrive here."""
        self._to(peer, frames.pack(message))

    def send_shutdown_notice(self, peer: bytes, cause: str) -> None:
        """To an agent, at once: its workers are to end."""
        self._to(peer, frames.pack(bus.ShutdownNotice(cause)))

    def end_remote(self) -> None:
        """The run ends for the other hosts."""
        for peer in self._agents.values():
            self.send_shutdown_notice(peer, "the run is over")
        self._pending.update(self._state.end_remote())

    def perform(self, actions: Iterable[ev.Action]) -> None:
        """Publish at once, the rest with `send_pending`. TrainingFailed when the run cannot continue."""
        for action in actions:
            match action:
                case ev.Forward():
                    self._forward += action.refs
                case ev.Reply():
                    self._pending.add(action.index)
                case ev.RequestHandovers():
                    self._learner_waits = True
                case ev.Publish():
                    send(self._sockets.notices, frames.pack(bus.CurrentNotice(action.notice)))
                case ev.Refuse():
                    self.refused[action.reason] += 1
                case ev.Dropped():
                    self.drops.add(action)
                case ev.Relieved():
                    self.relieved.append(action)
                case ev.Fail():
                    raise TrainingFailed(action.cause)

    def send_pending(self) -> None:
        """Every pending reply."""
        if self._forward:
            refs = self._forward[:MOST_DESCRIPTORS]
            if send(self._sockets.descriptors, frames.pack_descriptors(self._state.incarnation, 0, refs)):
                self._forward = self._forward[MOST_DESCRIPTORS:]
        for index in self._pending:
            snapshot = self._state.snapshot(index)
            if snapshot is not None:
                self._to_worker(index, self._assignments(snapshot))
        self._pending.clear()
        self._send_records()
        if self._learner_waits and self._learner is not None:
            self._learner_waits = False
            self._to(self._learner, self._status())
        for peer, reply in self._weights.pop_ready():
            self._to(peer, *reply)

    def _send_records(self) -> None:
        for index, (spawn, records) in self._requested_records.items():
            parts: list[bus.RecordPart] = []
            left = PART_BYTES
            process = self._state.workers.spawned(index, spawn)
            for vector_env, incarnation, offset in records:
                assignment = None if process is None else process.unbegun(vector_env, incarnation)
                if assignment is not None and left:
                    content = self._packed.of(assignment)[offset : offset + left]
                    parts.append(bus.RecordPart(vector_env, incarnation, offset, content))
                    left -= len(content)
            if parts:
                self._to_worker(index, frames.pack(bus.Record(spawn, parts)))
        self._requested_records.clear()
        self._packed.keep(lambda key: self._state.assignment.is_unbegun(*key))

    def _status(self) -> bytes:
        state, offset = self._state, self.handover_parts.offset
        handovers = state.assignment.requests
        requests = [bus.HandoverPartRequest(r.vector_env, r.incarnation, r.next_index, offset(r)) for r in handovers]
        known = None if state.notice is None else state.notice.version
        return frames.pack(bus.BrokerStatus(state.incarnation, requests, known))

    def _assignments(self, snapshot: ev.AssignmentSnapshot) -> bytes:
        message = bus.WorkerAssignments(
            spawn=snapshot.spawn,
            broker=self._state.incarnation,
            leases=list(snapshot.leases),
            acked=[bus.Acked(v, *at) for v, at in snapshot.acked.items()],
            serial=snapshot.serial,
            streams=None if snapshot.assignments is None else [self._packed.row_of(a) for a in snapshot.assignments],
            stop=snapshot.stop,
        )
        return frames.pack(message)

    def _to_worker(self, index: int, message: bytes) -> None:
        peer = self._state.workers.of(index).peer
        if peer is not None:
            self._to(peer, message)

    def _to(self, peer: bytes, *parts: bytes) -> None:
        try:
            self._sockets.control.send_multipart((peer, *parts), zmq.NOBLOCK)
        except zmq.Again:
            self.refused["no room to answer"] += 1


class DropLog:
    """At most `MOST_LINES` within `WINDOW_S`; what is left out is summed up in the first line after that."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`out`: the process's stderr, which is its log, if not given. `clock`: seconds that are never set back."""
        self._out, self._clock = out, clock
        self._begun_at = -WINDOW_S
        self._lines = 0
        self._left_out: Counter[str] = Counter()
        """Rows by reason."""

    def add(self, dropped: ev.Dropped) -> None:
        """One line, or a count."""
        now = self._clock()
        if now >= self._begun_at + WINDOW_S:
            self._sum_up()
            self._begun_at, self._lines = now, 0
        if self._lines >= MOST_LINES:
            self._left_out[dropped.reason] += dropped.rows
            return
        self._lines += 1
        vector_env, incarnation, index = dropped.id
        where = f"vector env {vector_env}, incarnation {incarnation}, index {index}"
        self._write(f"{dropped.rows} rows, {dropped.reason}: segment {where}")

    def close(self) -> None:
        """The process ends: sum up what was left out."""
        self._sum_up()

    def _sum_up(self) -> None:
        for reason, rows in self._left_out.items():
            self._write(f"{rows} rows, {reason}: of unidentified segments, within {WINDOW_S:g} s")
        self._left_out.clear()

    def _write(self, text: str) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"{at} dropped {text}", file=self._out or sys.stderr, flush=True)
