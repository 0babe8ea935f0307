"""The broker's decisions: `handle(event) -> [action]`. The arena is its memory, so a new broker goes on from there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from zmqrl.broker import events as ev
from zmqrl.broker.limiter import LeaseLimiter
from zmqrl.broker.membership import Membership
from zmqrl.broker.orders import RESUMED_SHIFT, StreamOrder, TakeUp, TakeUpRequest
from zmqrl.broker.slots import Slots
from zmqrl.broker.streams import Streams
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import ACCEPT, LEASE, Arena
from zmqrl.types import Notice, SegmentMeta, SlotRef, Version

MOST_WORKERS = 1 << 16


@dataclass
class _Worker:
    spawn: int
    leases: dict[int, SlotRef] = field(default_factory=dict)
    orders: dict[int, StreamOrder] = field(default_factory=dict)
    """What it is to step, by vector env."""
    leaving: dict[int, StreamOrder] = field(default_factory=dict)
    """Taken off its orders; its own until it says that it has stopped."""
    told: frozenset[int] = frozenset()
    """The vector envs that it named last, also those of which it has unbooked segments."""
    serial: int = 0
    """Grows with each change of `orders`."""
    heard_serial: int = -1
    listed: bool = False
    """An agent has named it alive: absent from now on means dead."""
    remote: bool = False


@dataclass(frozen=True)
class _GoneBack:
    """Where a learner went back to, with the rows of each vector env that were stored until there."""

    version: Version
    rows: Sequence[int]

    @property
    def incarnation(self) -> int:
        """Of the vector envs from there on; each is taken up under a later one."""
        return self.version.incarnation << RESUMED_SHIFT


class BrokerState:
    """Streams, leases and members. One thread; no I/O but the arena."""

    def __init__(self, plan: RunPlan, arena: Arena) -> None:
        self._plan, self._arena = plan, arena
        env = plan.config.env
        self.streams = Streams(arena, env.num_envs * env.segment_steps, plan.config.limits.leases_per_worker)
        self.streams.mend()
        self._slots = Slots(arena)
        self._settled = arena.broker_incarnation == 0
        self.incarnation = arena.begin_broker()
        self._limiter = LeaseLimiter(plan)
        self._sync = plan.config.run.mode != "async"
        self._workers: dict[int, _Worker] = {}
        self._membership = Membership(self._sync, env.vector_envs if self._sync else plan.streams)
        self._begun = any(record.incarnation >= 0 for record in self.streams.records)
        self._unheard: dict[int, int] | None = None
        self._holders: dict[int, int] = {}
        """Vector env to the worker that has it, or is leaving it."""
        self._awaited: set[int] = set()
        """Vector envs that are not moved yet: who stepped them under the broker before this one may still say so."""
        self._asked: dict[int, TakeUpRequest] = {}
        self._base: int | None = arena.base_env_steps()
        self.notice: Notice | None = None
        self._back: _GoneBack | None = None
        self._actions: list[ev.Action] = []
        self._members_changed = self._released = True
        self._ending = False

    def handle(self, event: ev.Event) -> list[ev.Action]:
        """Take one event in. What processes known to be dead say changes nothing."""
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[ev.Event]) -> list[ev.Action]:
        """Take a round's events in, in order; streams and leases are given out once, at its end."""
        self._actions = []
        for event in events:
            self._take(event)
        self._serve()
        return self._actions

    def _take(self, event: ev.Event) -> None:
        if isinstance(event, ev.Sealed):
            self._sealed(event)
        elif isinstance(event, ev.WorkerIs):
            self._worker_is(event)
        elif isinstance(event, ev.LearnerIs):
            self._limiter.report(event.updates)
            self._released = True
        elif isinstance(event, ev.Announced):
            self._announced(event)
        elif isinstance(event, ev.HostIs):
            self._host_is(event)
        elif isinstance(event, ev.Delivered):
            self._delivered(event)
        elif isinstance(event, ev.Answered):
            self._answered(event.take_up)
        elif isinstance(event, ev.WaitedEnough):
            self._members_changed = self._members_changed or bool(self._awaited)
            self._awaited.clear()
        else:
            worker = self._workers.get(event.index)
            credits_expire = isinstance(event, ev.Goodbye) or (worker is not None and worker.remote)
            if worker is not None and worker.spawn == event.spawn and credits_expire:
                self._bury(event.index)

    def await_claims(self) -> None:
        """After another broker, with other hosts: until `WaitedEnough` those who step vector envs may claim them."""
        if self._sync:
            self._awaited = {v for v, record in enumerate(self.streams.records) if record.incarnation >= 0}

    @property
    def requests(self) -> list[TakeUpRequest]:
        """Take-ups that the learner has not answered."""
        return list(self._asked.values())

    def standing(self, index: int) -> ev.Standing | None:
        """What worker `index` is to know; None for a stranger."""
        worker = self._workers.get(index)
        if worker is None:
            return None
        records = self.streams.records
        named = worker.told | worker.orders.keys() | worker.leaving.keys()
        acked = {v: (records[v].incarnation, records[v].next_index) for v in named}
        orders = None if worker.heard_serial == worker.serial else tuple(worker.orders.values())
        left = self._membership.has_left(index) and not worker.orders and not worker.leaving
        stop = left or (self._ending and worker.remote)
        return ev.Standing(worker.spawn, tuple(worker.leases.values()), acked, orders, worker.serial, stop)

    @property
    def has_remote(self) -> bool:
        """Whether workers of other hosts are there."""
        return any(worker.remote for worker in self._workers.values())

    def end_remote(self) -> list[int]:
        """The run ends: their next standing tells workers of other hosts to stop. Who they are."""
        self._ending = True
        return [index for index, worker in self._workers.items() if worker.remote]

    def may_be(self, index: int) -> bool:
        """Whether a worker can have this index."""
        return index < (MOST_WORKERS if self._sync else self._plan.streams)

    def gave_up(self, workers: Collection[int]) -> bool:
        """Whether these are workers that the run goes on without."""
        return bool(workers) and self._membership.given_up.issuperset(workers)

    def has_work(self, index: int) -> bool:
        """Whether a worker could step now: it has a lease and, in sync, a vector env whose turn it is.

        Who beats and has not said which leases it has owes that word: a new broker leases nothing to anybody before.
        """
        worker = self._workers.get(index)
        return worker is None or (bool(worker.leases) and self._open_positions(worker) > 0)

    def accept_all_sealed(self) -> list[SlotRef]:
        """Book whatever is sealed, in order: what dead workers left, and all of it when the broker ends."""
        booked: list[SlotRef] = []
        leased = {ref: worker for worker in self._workers.values() for ref in worker.leases.values()}
        for ref in self._arena.sealed():
            worker = leased.get(ref)
            if worker is not None:
                self._book(worker, ref, booked)
                continue
            meta = self._arena.meta(ref.slot)
            if self.streams.is_sane(meta):
                self.streams.produce(meta)
                if self.streams.accept(ref, meta):
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
                self.streams.refuse_duplicate(ref)
        self._forward(booked)
        self._actions.append(ev.Reply(event.index))

    def _forward(self, booked: list[SlotRef]) -> None:
        if booked:
            self._actions.append(ev.Forward(tuple(booked)))

    def _book(self, worker: _Worker, ref: SlotRef, booked: list[SlotRef]) -> bool:
        """False when its turn has not come: a descriptor before it was lost."""
        meta = self._arena.meta(ref.slot)
        if not self._is_its_own(worker, meta):
            self._actions.append(ev.Refuse("segment header"))
            self._arena.lease(ref.slot)
            accepted: bool | None = False
        else:
            accepted = self.streams.accept(ref, meta)
        if accepted is None:
            return False
        del worker.leases[ref.slot]
        if accepted:
            self._slots.hold(ref)
            booked.append(ref)
        else:
            self._slots.free(ref.slot)
        return True

    def _is_its_own(self, worker: _Worker, meta: SegmentMeta) -> bool:
        """Whether the header names a stream of this worker, or an incarnation that has passed."""
        if not self.streams.is_sane(meta):
            return False
        vector_env, incarnation, _ = meta.id
        own = vector_env in worker.orders or vector_env in worker.leaving
        return own or incarnation < self.streams.records[vector_env].incarnation

    def _book_in_order(self, worker: _Worker, booked: list[SlotRef]) -> None:
        """All that a worker has sealed, descriptors or none."""
        sealed = [ref for ref in worker.leases.values() if self.streams.is_sealed(ref)]
        for ref in sorted(sealed, key=lambda r: self._arena.meta(r.slot).id):
            self._book(worker, ref, booked)

    def _delivered(self, event: ev.Delivered) -> None:
        """A whole segment from another host: write it into the slot that its credit names, and seal it."""
        worker, ref = self._workers.get(event.index), event.ref
        if worker is None or worker.spawn != event.spawn or not worker.remote:
            return
        if worker.leases.get(ref.slot) == ref and not self.streams.is_sealed(ref):
            if not self._is_its_own(worker, event.meta):
                self._actions.append(ev.Refuse("segment header"))
                return
            for name, column in event.columns.items():
                self._arena.columns[name][ref.slot] = column
            self._arena.write_meta(ref.slot, event.meta)
            self._arena.seal(ref)
            self.streams.produce(event.meta)
            self._arena.streams.write_open(event.meta.id.vector_env, event.meta.id.index + 1, 0)
        self._sealed(ev.Sealed(event.index, event.spawn, (ref,)))

    def _worker_is(self, event: ev.WorkerIs) -> None:
        if not self.may_be(event.index):
            self._actions.append(ev.Refuse("worker"))
            return
        if event.index in self._membership.given_up:
            return  # of a host that was cut off for too long: its agent is told, and ends it
        worker = self._workers.get(event.index)
        if worker is not None and (event.spawn < worker.spawn or (worker.listed and event.spawn != worker.spawn)):
            return
        if not self._settled and event.broker is not None and event.broker != self.incarnation:
            self._actions.append(ev.Reply(event.index))
            return
        if worker is None or worker.spawn < event.spawn:
            if worker is not None:  # an agent starts a successor only after it reaped
                self._bury(event.index)
            worker = self._workers[event.index] = _Worker(event.spawn, remote=event.remote)
            self._membership.greet(event.index)
            self._members_changed = True
            self._reclaim(event, worker)
        worker.heard_serial = event.serial
        worker.told = frozenset(v for v in event.streams if v < len(self.streams.records))
        for vector_env, index, rows in event.open_rows if event.remote else ():
            if vector_env in worker.orders and self.streams.is_open_sane(index, rows):
                self._arena.streams.write_open(vector_env, index, rows)
        if worker.leaving and event.serial == worker.serial:
            self._let_go(worker)
        if self._unheard is not None:
            self._unheard.pop(event.index, None)
            self._settle_if_heard()
        self._actions.append(ev.Reply(event.index))
        if self._asked:
            self._actions.append(ev.Ask())

    def _reclaim(self, event: ev.WorkerIs, worker: _Worker) -> None:
        """A worker that outlived a broker: its leases and its streams go on."""
        for ref in event.leases if not self._settled else ():
            leased = ref.slot in self._slots.in_doubt and self._arena.word(ref.slot, LEASE) == ref.generation
            # Else it was booked and released since, and the worker has not heard: free, not its own.
            if leased and self._arena.word(ref.slot, ACCEPT) < ref.generation:
                self._slots.claim(ref.slot)
                worker.leases[ref.slot] = ref
        for vector_env, incarnation in event.streams.items():
            if vector_env < len(self.streams.records) and vector_env not in self._holders:
                record = self.streams.records[vector_env]
                if record.incarnation == incarnation != record.swept:
                    self._give(event.index, StreamOrder(vector_env, incarnation, record.next_index, None))
                    self._membership.leave_with(vector_env, event.index)
                    self._awaited.discard(vector_env)

    def _host_is(self, event: ev.HostIs) -> None:
        held, given_up = ([i for i in said if self.may_be(i)] for said in (event.workers, event.given_up))
        if self._membership.hear(event.host, held, given_up):
            self._members_changed = True
        for index in [i for i in self._workers if self._membership.is_of(i, event.host)]:
            worker = self._workers[index]
            if index in self._membership.given_up or (worker.listed and event.alive.get(index) != worker.spawn):
                self._bury(index)
            elif event.alive.get(index) == worker.spawn:
                worker.listed = True
        if not self._settled and event.host == self._plan.config.learner.host:
            if self._unheard is None:
                self._unheard = {i: s for i, s in event.alive.items() if i not in self._workers}
            self._unheard = {i: s for i, s in self._unheard.items() if event.alive.get(i) == s}
            self._settle_if_heard()
        if self._membership.given_up and not self._membership.members:
            self._actions.append(ev.Fail("every worker was given up"))

    def _settle_if_heard(self) -> None:
        if self._settled or self._unheard:
            return
        self._settled, self._unheard = True, None
        self._members_changed = True
        self._forward(self.accept_all_sealed())
        self._slots.settle()

    def _bury(self, index: int) -> None:
        """The process is gone: book what it sealed, count what it did not, take its slots back."""
        worker = self._workers.pop(index)
        self._members_changed = True
        for ref in worker.leases.values():
            meta = self._arena.meta(ref.slot)
            if self.streams.is_sealed(ref) and self._is_its_own(worker, meta):
                self.streams.produce(meta)
        booked: list[SlotRef] = []
        self._book_in_order(worker, booked)
        for vector_env in (*worker.orders, *worker.leaving):
            self.streams.sweep(vector_env)
            del self._holders[vector_env]
        for ref in worker.leases.values():
            self._arena.lease(ref.slot)
            self._slots.free(ref.slot)
        self._forward(booked)

    def _announced(self, event: ev.Announced) -> None:
        notice = event.notice
        if self.notice is not None and notice.version <= self.notice.version:
            return
        if self._base is None:
            self._base = notice.env_steps if self._plan.resume else 0
            if self._plan.resume:
                self._adopt_slots()
            self._arena.set_base_env_steps(self._base)
        ahead = [r for r in self.streams.records if r.incarnation >= 0 and r.next_index > notice.version.n + 1]
        if self._sync and event.back is not None:
            self._go_back(_GoneBack(notice.version, event.back))
        elif self._sync and ahead:
            self._actions.append(
                ev.Fail(f"the learner went back to {notice.version}, before what was stored: resume the run")
            )
        self._members_changed = self._members_changed or self.notice is None
        self.notice = notice
        self._actions.append(ev.Publish(notice))

    def _go_back(self, back: _GoneBack) -> None:
        """Positions from there on are open again: every vector env is taken off its holder, then taken up anew."""
        if len(back.rows) != self._plan.config.env.vector_envs:
            self._actions.append(ev.Refuse("value"))
            return
        self._back, self._members_changed = back, True
        for vector_env in range(len(back.rows)):
            if self._is_behind(vector_env):
                self._asked.pop(vector_env, None)

    def _is_behind(self, vector_env: int) -> bool:
        """Whether its books still have what the learner went back from."""
        return self._back is not None and 0 <= self.streams.records[vector_env].incarnation < self._back.incarnation

    def _adopt_slots(self) -> None:
        """Before its first notice the learner of a resumed run put back what replay held."""
        self._slots = Slots(self._arena)
        if self._settled:
            self._slots.settle()

    def _answered(self, take_up: TakeUp) -> None:
        request = self._asked.get(take_up.vector_env)
        if request is None or request.incarnation != take_up.incarnation:
            return
        del self._asked[take_up.vector_env]
        self._members_changed = True  # whoever is its owner by now
        if self._membership.owner(take_up.vector_env) in self._workers:
            self._begin(StreamOrder(take_up.vector_env, take_up.incarnation, take_up.next_index, take_up.states))

    def _begin(self, order: StreamOrder) -> None:
        index = self._membership.owner(order.vector_env)
        assert index is not None, "asked before"
        self.streams.take_up(order.vector_env, order.incarnation, order.next_index)
        self._give(index, order)
        self._actions.append(ev.Reply(index))

    def _give(self, index: int, order: StreamOrder) -> None:
        worker = self._workers[index]
        worker.orders[order.vector_env] = order
        worker.serial += 1
        self._holders[order.vector_env] = index

    def _take_off(self, index: int, vector_env: int) -> None:
        """Another is to have it: first its holder has to say that it no longer steps it and has nothing unbooked."""
        worker = self._workers[index]
        if vector_env in worker.orders:
            worker.leaving[vector_env] = worker.orders.pop(vector_env)
            worker.serial += 1
            self._actions.append(ev.Reply(index))

    def _let_go(self, worker: _Worker) -> None:
        booked: list[SlotRef] = []
        self._book_in_order(worker, booked)
        self._forward(booked)
        for vector_env in worker.leaving.keys() - worker.told:
            del worker.leaving[vector_env], self._holders[vector_env]
            self.streams.sweep(vector_env)
            self._members_changed = True

    def _serve(self) -> None:
        """Give streams to who should have them, and leases to who may."""
        if not self._settled or (self._plan.resume and self._base is None):
            return
        if self._members_changed:
            self._members_changed = False
            self._begun = self._begun or len(self._workers) >= self._plan.config.min_workers
            if self._begun:
                self._place()
        self._slots.collect(thoroughly=self._released)
        self._released = False
        wanting = [(len(w.leases), i) for i, w in self._workers.items() if len(w.leases) < self._most_leases(w)]
        wanting = [(count, i) for count, i in wanting if i in self._membership.members]
        outstanding = sum(len(w.leases) for w in self._workers.values()) if wanting else 0
        while wanting and self._limiter.allows((self._base or 0) + self.streams.stored, outstanding):
            ref = self._slots.lease()
            if ref is None:
                return
            count, index = min(wanting)
            wanting.remove((count, index))
            worker = self._workers[index]
            worker.leases[ref.slot] = ref
            outstanding += 1
            if count + 1 < self._most_leases(worker):
                wanting.append((count + 1, index))
            self._actions.append(ev.Reply(index))

    def _place(self) -> None:
        """Every vector env to its owner, or on its way to it."""
        self._membership.balance()
        for vector_env in range(self._plan.config.env.vector_envs if self._sync else self._plan.streams):
            owner, holder = self._membership.owner(vector_env), self._holders.get(vector_env)
            if holder is not None and (holder != owner or self._is_behind(vector_env)):
                self._take_off(holder, vector_env)
            elif holder is None and owner in self._workers and vector_env not in self._awaited:
                self._hand_over(vector_env)

    def _most_leases(self, worker: _Worker) -> int:
        """`leases_per_worker`, in sync also one for each position that it has to fill yet.

        Never more: leases are not taken back, and what one worker has too many another lacks for its quota.
        """
        most = self._plan.config.limits.leases_per_worker
        return max(most, self._open_positions(worker)) if self._sync else most

    def _open_positions(self, worker: _Worker) -> int:
        """Streams of the worker whose next segment is due now."""
        if not self._sync:
            return len(worker.orders)
        n, records = self.notice.version.n if self.notice else 0, self.streams.records
        return sum(records[v].next_index <= n for v in worker.orders)

    def _hand_over(self, vector_env: int) -> None:
        record = self.streams.records[vector_env]
        if vector_env in self._asked or (self._plan.resume and self.notice is None):
            return
        if record.incarnation < 0 and not self._plan.resume:
            self._begin(StreamOrder(vector_env, 0 if self._back is None else self._back.incarnation, 0, None))
            return
        if record.incarnation >= 0:
            self.streams.sweep(vector_env)
        if self._back is not None and self._is_behind(vector_env):
            back = self._back
            if not self.streams.roll_back(vector_env, back.incarnation, back.version.n, back.rows[vector_env]):
                self._actions.append(ev.Fail(f"the learner went back to {back.version}, beyond what was stored"))
                return
        first = self.notice.version.incarnation << RESUMED_SHIFT if self._plan.resume and self.notice else 0
        incarnation = max(record.incarnation + 1, first)
        if not self._sync:
            self._begin(StreamOrder(vector_env, incarnation, 0, None))
        else:
            self._asked[vector_env] = TakeUpRequest(vector_env, incarnation, record.next_index)
            self._actions.append(ev.Ask())
