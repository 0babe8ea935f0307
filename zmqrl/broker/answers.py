"""What the broker answers: each peer at most once per round, and always where it stands, never what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.doors import Doors
from zmqrl.broker.orders import order_to_data
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_desk import WeightsDesk
from zmqrl.errors import TrainingFailed
from zmqrl.types import SlotRef
from zmqrl.wire import messages
from zmqrl.wire.sockets import send

MOST_DESCRIPTORS = 10_000


class Answers:
    """Who is at which peer id, and what each is owed. Never blocks: who has no room for an answer asks again."""

    def __init__(self, doors: Doors, state: BrokerState, desk: WeightsDesk, refused: Counter[str]) -> None:
        """`refused`: where it counts what could not be taken, or answered."""
        self._doors, self._state, self._desk, self._refused = doors, state, desk, refused
        self._workers: dict[int, bytes] = {}
        self._learner: bytes | None = None
        self._agents: dict[str, bytes] = {}
        """Of other hosts."""
        self._forward: list[SlotRef] = []
        self._owed: set[int] = set()
        self._ask = False

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

    def welcome(self, peer: bytes) -> None:
        """To an agent, at once: this broker is there, and so is this version."""
        self._to(peer, messages.pack("welcome", broker=self._state.incarnation))
        if self._state.notice is not None:
            self._to(peer, messages.pack_notice(self._state.notice))

    def farewell(self, peer: bytes) -> None:
        """To an agent, at once: its workers are to end."""
        self._to(peer, messages.pack("farewell"))

    def end_remote(self) -> None:
        """The run ends for the other hosts."""
        for peer in self._agents.values():
            self.farewell(peer)
        self._owed.update(self._state.end_remote())

    def act(self, actions: Iterable[ev.Action]) -> None:
        """Publish at once, owe the rest. TrainingFailed when the run cannot go on."""
        for action in actions:
            if isinstance(action, ev.Forward):
                self._forward += action.refs
            elif isinstance(action, ev.Reply):
                self._owed.add(action.index)
            elif isinstance(action, ev.Ask):
                self._ask = True
            elif isinstance(action, ev.Publish):
                send(self._doors.notices, messages.pack_notice(action.notice))
            elif isinstance(action, ev.Refuse):
                self._refused[action.reason] += 1
            else:
                raise TrainingFailed(action.cause)

    def give(self) -> None:
        """All that is owed."""
        if self._forward:
            refs = self._forward[:MOST_DESCRIPTORS]
            if send(self._doors.descriptors, messages.pack_descriptors(self._state.incarnation, 0, refs)):
                self._forward = self._forward[MOST_DESCRIPTORS:]
        for index in self._owed:
            standing = self._state.standing(index)
            if standing is not None and index in self._workers:
                self._to(self._workers[index], self._orders(standing))
        self._owed.clear()
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

    def _orders(self, standing: ev.Standing) -> bytes:
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
            self._refused["no room to answer"] += 1
