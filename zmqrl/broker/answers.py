"""Replies of the broker: each peer at most once per round, always the current state, never the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.doors import Doors
from zmqrl.broker.drop_log import DropLog
from zmqrl.broker.env_records import PART_BYTES, PackedRecords, TakeUpParts
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_desk import WeightsDesk
from zmqrl.errors import TrainingFailed
from zmqrl.messages import bus, frames
from zmqrl.types import SlotRef
from zmqrl.wire.sockets import send

MOST_DESCRIPTORS = 10_000


class Answers:
    """Peer ids and pending replies. Never blocks: a peer whose queue is full repeats its request."""

    def __init__(self, doors: Doors, state: BrokerState, desk: WeightsDesk, refused: Counter[str]) -> None:
        """`refused`: where it counts what could not be taken, or answered."""
        self._doors, self._state, self._desk, self._refused = doors, state, desk, refused
        self._workers: dict[int, bytes] = {}
        self._learner: bytes | None = None
        self._agents: dict[str, bytes] = {}
        """Of other hosts."""
        self._forward: list[SlotRef] = []
        self._owed: set[int] = set()
        self._wanted: dict[int, tuple[int, Sequence[bus.RecordAt]]] = {}
        """By worker: its spawn, and the parts of records that it requested last."""
        self._packed = PackedRecords()
        self.take_up_parts = TakeUpParts()
        """The learner's answers, as far as they have come."""
        self._ask = False
        self.drops = DropLog()

    def worker_at(self, index: int, peer: bytes) -> None:
        """Where worker `index` spoke from last."""
        self._workers[index] = peer

    def agent_at(self, host: str, peer: bytes) -> None:
        """Where the agent of another host spoke from last."""
        self._agents[host] = peer

    def learner_at(self, peer: bytes, answer: bool) -> None:
        """Where the learner spoke from last; it is answered in this round if it is new, or when `answer`."""
        self._ask = self._ask or answer or peer != self._learner
        self._learner = peer

    def want(self, index: int, spawn: int, records: Sequence[bus.RecordAt]) -> None:
        """A worker lacks these parts of its orders' records."""
        self._wanted[index] = (spawn, records)

    def welcome(self, peer: bytes) -> None:
        """To an agent, at once: this broker is there, and so is this version."""
        self._to(peer, frames.pack(bus.Welcome(self._state.incarnation)))
        if self._state.notice is not None:
            self._to(peer, frames.pack(bus.CurrentNotice(self._state.notice)))

    def farewell(self, peer: bytes, cause: str) -> None:
        """To an agent, at once: its workers are to end."""
        self._to(peer, frames.pack(bus.Farewell(cause)))

    def end_remote(self) -> None:
        """The run ends for the other hosts."""
        for peer in self._agents.values():
            self.farewell(peer, "the run is over")
        self._owed.update(self._state.end_remote())

    def act(self, actions: Iterable[ev.Action]) -> None:
        """Publish at once, owe the rest. TrainingFailed when the run cannot continue."""
        for action in actions:
            match action:
                case ev.Forward():
                    self._forward += action.refs
                case ev.Reply():
                    self._owed.add(action.index)
                case ev.Ask():
                    self._ask = True
                case ev.Publish():
                    send(self._doors.notices, frames.pack(bus.CurrentNotice(action.notice)))
                case ev.Refuse():
                    self._refused[action.reason] += 1
                case ev.Dropped():
                    self.drops.add(action)
                case ev.Fail():
                    raise TrainingFailed(action.cause)

    def give(self) -> None:
        """All that is owed."""
        if self._forward:
            refs = self._forward[:MOST_DESCRIPTORS]
            if send(self._doors.descriptors, frames.pack_descriptors(self._state.incarnation, 0, refs)):
                self._forward = self._forward[MOST_DESCRIPTORS:]
        for index in self._owed:
            standing = self._state.standing(index)
            if standing is not None and index in self._workers:
                self._to(self._workers[index], self._orders(standing))
        self._owed.clear()
        self._give_records()
        if self._ask and self._learner is not None:
            self._ask = False
            self._to(self._learner, self._books())
        for peer, reply in self._desk.served():
            self._to(peer, *reply)

    def _give_records(self) -> None:
        for index, (spawn, records) in self._wanted.items():
            parts: list[bus.RecordPart] = []
            left = PART_BYTES
            for vector_env, incarnation, offset in records:
                order = self._state.unbegun(vector_env, incarnation)
                if order is not None and left and self._state.holds(index, spawn, vector_env):
                    content = self._packed.of(order)[offset : offset + left]
                    parts.append(bus.RecordPart(vector_env, incarnation, offset, content))
                    left -= len(content)
            if parts and index in self._workers:
                self._to(self._workers[index], frames.pack(bus.Record(spawn, parts)))
        self._wanted.clear()
        self._packed.keep(lambda key: self._state.unbegun(*key) is not None)

    def _books(self) -> bytes:
        state, offset = self._state, self.take_up_parts.offset
        requests = [bus.BookRequest(r.vector_env, r.incarnation, r.next_index, offset(r)) for r in state.requests]
        known = None if state.notice is None else state.notice.version
        return frames.pack(bus.Books(state.incarnation, requests, known))

    def _orders(self, standing: ev.Standing) -> bytes:
        orders = bus.Orders(
            spawn=standing.spawn,
            broker=self._state.incarnation,
            leases=list(standing.leases),
            acked=[bus.Acked(v, *at) for v, at in standing.acked.items()],
            serial=standing.serial,
            orders=None if standing.orders is None else [self._packed.row_of(o) for o in standing.orders],
            stop=standing.stop,
        )
        return frames.pack(orders)

    def _to(self, peer: bytes, *parts: bytes) -> None:
        try:
            self._doors.control.send_multipart((peer, *parts), zmq.NOBLOCK)
        except zmq.Again:
            self._refused["no room to answer"] += 1
