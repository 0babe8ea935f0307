"""The broker's decisions: `handle(event) -> [action]`. The arena is its memory, so a new broker goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, field

from zmqrl.broker import events as ev
from zmqrl.broker.limiter import LeaseLimiter
from zmqrl.broker.orders import StreamOrder, TakeUpRequest
from zmqrl.broker.slots import Slots
from zmqrl.broker.streams import Streams
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import ACCEPT, Arena
from zmqrl.types import Notice, SlotRef

RESUMED_SHIFT = 16
"""Incarnations of a resumed run begin at the learner's incarnation shifted by this: none is used twice."""


@dataclass
class _Worker:
    spawn: int
    leases: dict[int, SlotRef] = field(default_factory=dict)
    listed: bool = False
    """An agent has named it alive: absent from now on means dead."""


class BrokerState:
    """Streams, leases and members. One thread; no I/O but the arena."""

    def __init__(self, plan: RunPlan, arena: Arena) -> None:
        self._plan, self._arena = plan, arena
        self.streams = Streams(arena)
        self.streams.mend()
        self._slots = Slots(arena)
        self._settled = arena.broker_incarnation == 0
        self.incarnation = arena.begin_broker()
        self._limiter = LeaseLimiter(plan)
        self._sync = plan.config.run.mode != "async"
        self._workers: dict[int, _Worker] = {}
        self._unheard: dict[int, int] | None = None
        self._given_up: set[int] = set()
        self._owners: dict[int, tuple[int, int]] = {}
        self._orders: dict[int, StreamOrder] = {}
        self._asked: dict[int, TakeUpRequest] = {}
        self._base: int | None = None
        self.notice: Notice | None = None
        self._actions: list[ev.Action] = []

    def handle(self, event: ev.Event) -> list[ev.Action]:
        """Take an event in. WorkerIs, Sealed, HostIs of processes already known to be dead change nothing."""
        self._actions = []
        if isinstance(event, ev.Sealed):
            self._sealed(event)
        elif isinstance(event, ev.WorkerIs):
            self._worker_is(event)
        elif isinstance(event, ev.HostIs):
            self._host_is(event)
        elif isinstance(event, ev.Goodbye):
            worker = self._workers.get(event.index)
            if worker is not None and worker.spawn == event.spawn:
                self._bury(event.index)
        elif isinstance(event, ev.LearnerIs):
            self._limiter.report(event.updates)
        elif isinstance(event, ev.Announced):
            self._announced(event.notice)
        else:
            self._answered(event)
        self._serve()
        return self._actions

    @property
    def requests(self) -> list[TakeUpRequest]:
        """Take-ups that the learner has not answered."""
        return list(self._asked.values())

    def standing(self, index: int) -> ev.Standing | None:
        """What worker `index` is to know; None for a stranger."""
        worker = self._workers.get(index)
        if worker is None:
            return None
        mine = [v for v, owner in self._owners.items() if owner == (index, worker.spawn)]
        acked = {v: (self.streams.records[v].incarnation, self.streams.records[v].next_index) for v in mine}
        return ev.Standing(worker.spawn, tuple(worker.leases.values()), acked, tuple(self._orders[v] for v in mine))

    def accept_all_sealed(self) -> list[SlotRef]:
        """Book whatever is sealed, in order: when the broker begins, and when it ends."""
        booked = []
        for ref in self._arena.sealed():
            self.streams.repair_producer(ref)
            if self.streams.accept(ref):
                self._slots.in_doubt.discard(ref.slot)
                self._slots.hold(ref)
                booked.append(ref)
        return booked

    def _sealed(self, event: ev.Sealed) -> None:
        worker = self._workers.get(event.index)
        if worker is None or worker.spawn != event.spawn:
            return
        booked: list[SlotRef] = []
        for ref in event.refs:
            if worker.leases.get(ref.slot) == ref:
                if self.streams.is_sealed(ref) and not self._book(worker, ref, booked):
                    self._book_in_order(worker, booked)
            elif 0 <= ref.slot < self._arena.layout.slots and self._arena.word(ref.slot, ACCEPT) == ref.generation:
                self.streams.refuse_duplicate(self._arena.meta(ref.slot).id.vector_env)
        if booked:
            self._actions.append(ev.Forward(tuple(booked)))
        self._actions.append(ev.Reply(event.index))

    def _book(self, worker: _Worker, ref: SlotRef, booked: list[SlotRef]) -> bool:
        """False when its turn has not come: a descriptor before it was lost."""
        accepted = self.streams.accept(ref)
        if accepted is None:
            return False
        del worker.leases[ref.slot]
        if accepted:
            self._slots.hold(ref)
            booked.append(ref)
        else:
            self._slots.free(ref.slot)
        return True

    def _book_in_order(self, worker: _Worker, booked: list[SlotRef]) -> None:
        """All that a worker has sealed, descriptors or none."""
        sealed = [ref for ref in worker.leases.values() if self.streams.is_sealed(ref)]
        for ref in sorted(sealed, key=lambda r: self._arena.meta(r.slot).id):
            self._book(worker, ref, booked)

    def _worker_is(self, event: ev.WorkerIs) -> None:
        known = self._workers.get(event.index)
        if known is not None and event.spawn < known.spawn:
            return
        if known is None or known.spawn < event.spawn:
            if known is not None:  # an agent starts a successor only after it reaped
                self._bury(event.index)
            worker = self._workers[event.index] = _Worker(event.spawn)
            if not self._settled:
                self._reclaim(event, worker)
        if self._unheard is not None:
            self._unheard.pop(event.index, None)
            self._settle_if_heard()
        self._actions.append(ev.Reply(event.index))
        if self._asked:
            self._actions.append(ev.Ask())

    def _reclaim(self, event: ev.WorkerIs, worker: _Worker) -> None:
        """A worker that outlived a broker: its leases and its streams go on."""
        for ref in event.leases:
            if ref.slot in self._slots.in_doubt and self._arena.word(ref.slot, 0) == ref.generation:
                self._slots.claim(ref.slot)
                worker.leases[ref.slot] = ref
        for vector_env, incarnation in event.streams.items():
            if vector_env < len(self.streams.records) and self.streams.records[vector_env].incarnation == incarnation:
                record = self.streams.records[vector_env]
                self._owners[vector_env] = (event.index, event.spawn)
                self._orders[vector_env] = StreamOrder(vector_env, incarnation, record.next_index, None)

    def _host_is(self, event: ev.HostIs) -> None:
        fresh_loss = set(event.given_up) - self._given_up
        self._given_up |= fresh_loss
        for index in [i for i, w in self._workers.items() if w.listed and event.alive.get(i) != w.spawn]:
            self._bury(index)
        for index, spawn in event.alive.items():
            worker = self._workers.get(index)
            if worker is not None and worker.spawn == spawn:
                worker.listed = True
        if not self._settled:
            if self._unheard is None:
                self._unheard = {i: s for i, s in event.alive.items() if i not in self._workers}
            self._unheard = {i: s for i, s in self._unheard.items() if event.alive.get(i) == s}
            self._settle_if_heard()
        if fresh_loss and len(self._given_up) >= self._plan.total_workers:
            self._actions.append(ev.Fail("every worker was given up"))

    def _settle_if_heard(self) -> None:
        if self._settled or self._unheard:
            return
        self._settled, self._unheard = True, None
        booked = self.accept_all_sealed()
        if booked:
            self._actions.append(ev.Forward(tuple(booked)))
        self._slots.settle()

    def _bury(self, index: int) -> None:
        """The process is gone: book what it sealed, count what it did not, take its slots back."""
        worker = self._workers.pop(index)
        booked: list[SlotRef] = []
        for ref in worker.leases.values():
            if self.streams.is_sealed(ref):
                self.streams.repair_producer(ref)
        self._book_in_order(worker, booked)
        for ref in worker.leases.values():
            self._arena.lease(ref.slot)
            self._slots.free(ref.slot)
        for vector_env in [v for v, owner in self._owners.items() if owner == (index, worker.spawn)]:
            self.streams.sweep(vector_env)
            del self._owners[vector_env], self._orders[vector_env]
        if booked:
            self._actions.append(ev.Forward(tuple(booked)))

    def _announced(self, notice: Notice) -> None:
        if self.notice is not None and notice.version <= self.notice.version:
            return
        if self._base is None:
            self._base = notice.env_steps if self._plan.resume else 0
        ahead = [
            v for v, r in enumerate(self.streams.records) if r.incarnation >= 0 and r.next_index > notice.version.n + 1
        ]
        if self._sync and ahead:
            self._actions.append(
                ev.Fail(f"the learner went back to {notice.version}, before what was stored: resume the run")
            )
        self.notice = notice
        self._actions.append(ev.Publish(notice))

    def _answered(self, event: ev.Answered) -> None:
        take_up = event.take_up
        request = self._asked.get(take_up.vector_env)
        worker = self._workers.get(self._owner_index(take_up.vector_env))
        if request is None or worker is None or request.incarnation != take_up.incarnation:
            return
        del self._asked[take_up.vector_env]
        self._begin(take_up.vector_env, take_up.incarnation, take_up.next_index, take_up)

    def _begin(self, vector_env: int, incarnation: int, next_index: int, take_up: object = None) -> None:
        index = self._owner_index(vector_env)
        self.streams.take_up(vector_env, incarnation, next_index)
        self._owners[vector_env] = (index, self._workers[index].spawn)
        states = getattr(take_up, "states", None)
        self._orders[vector_env] = StreamOrder(vector_env, incarnation, next_index, states)
        self._actions.append(ev.Reply(index))

    def _owner_index(self, vector_env: int) -> int:
        """Whose vector env it is; -1 when nobody's."""
        if not self._sync:
            return vector_env
        workers = self._plan.total_workers or 1
        index = vector_env % workers
        left = [i for i in range(workers) if i not in self._given_up]
        return index if index in left else left[vector_env % len(left)] if left else -1

    def _serve(self) -> None:
        """Give streams to who should have them, and leases to who may."""
        if not self._settled:
            return
        count = self._plan.config.env.vector_envs if self._sync else self._plan.streams
        for vector_env in range(count):
            if vector_env not in self._owners and self._owner_index(vector_env) in self._workers:
                self._hand_over(vector_env)
        self._slots.collect()
        outstanding = sum(len(w.leases) for w in self._workers.values())
        while True:
            waiting = [
                i for i, w in self._workers.items() if len(w.leases) < self._plan.config.limits.leases_per_worker
            ]
            waiting.sort(key=lambda i: len(self._workers[i].leases))
            if not waiting or not self._limiter.allows((self._base or 0) + self.streams.stored, outstanding):
                return
            ref = self._slots.lease()
            if ref is None:
                return
            outstanding += 1
            self._workers[waiting[0]].leases[ref.slot] = ref
            self._actions.append(ev.Reply(waiting[0]))

    def _hand_over(self, vector_env: int) -> None:
        record = self.streams.records[vector_env]
        if vector_env in self._asked or (self._plan.resume and self.notice is None):
            return
        if record.incarnation < 0 and not self._plan.resume:
            self._begin(vector_env, 0, 0)
            return
        self.streams.sweep(vector_env)
        first = self.notice.version.incarnation << RESUMED_SHIFT if self._plan.resume and self.notice else 0
        incarnation = max(record.incarnation + 1, first)
        if not self._sync:
            self._begin(vector_env, incarnation, 0)
        else:
            self._asked[vector_env] = TakeUpRequest(vector_env, incarnation, record.next_index)
            self._actions.append(ev.Ask())
