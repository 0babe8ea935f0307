"""Who steps which vector env: handed over, taken off, claimed from the broker before, open again after going back.

A vector env has one holder at most. It goes to another only once its holder has stopped it, or is dead; what the
holder had sealed is accepted before (`zmqrl.broker.booking`), so the stream records say where the next one begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zmqrl.broker import events as ev
from zmqrl.broker.membership import Membership
from zmqrl.broker.orders import RESUMED_SHIFT, StreamOrder, TakeUp, TakeUpRequest
from zmqrl.broker.streams import Streams
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.stream_table import NOBODY
from zmqrl.types import SlotRef, Version


@dataclass
class _Part:
    """What one worker process steps, by vector env."""

    spawn: int
    orders: dict[int, StreamOrder] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    """Taken off its orders; assigned to it until it reports that it has stopped."""
    told: frozenset[int] = frozenset()
    """The vector envs that it named last, also those with segments that are not accepted."""
    serial: int = 0
    """Grows with each change of `orders`."""
    heard_serial: int = -1


@dataclass(frozen=True)
class _GoneBack:
    """Where a learner rolled back to, with the rows of each vector env that were stored until there."""

    version: Version
    rows: Sequence[int]

    @property
    def incarnation(self) -> int:
        """Of the vector envs from there on; each is handed over under a later one."""
        return self.version.incarnation << RESUMED_SHIFT


class Placement:
    """Part of the broker's state: writes handovers, closings and roll-backs into the stream records."""

    def __init__(self, plan: RunPlan, streams: Streams, membership: Membership, actions: list[ev.Action]) -> None:
        """`actions` receives the actions to perform."""
        self._streams, self._membership, self._actions = streams, membership, actions
        self._sync, self._resume = plan.config.run.mode != "async", plan.resume
        self._vector_envs = plan.config.env.vector_envs if self._sync else plan.streams
        self._min_workers = plan.config.min_workers
        self._begun = any(record.incarnation >= 0 for record in streams.records)
        self._parts: dict[int, _Part] = {}
        """By the index of each worker that is there."""
        self.holders: dict[int, int] = {}
        """Vector env to the worker that has it, or is leaving it. To be read."""
        self._awaited: dict[int, tuple[int, int]] = {}
        """Vector envs that are not moved yet, with who (index, spawn) stepped them under the broker before this one."""
        self._asked: dict[int, TakeUpRequest] = {}
        self._version: Version | None = None
        self._back: _GoneBack | None = None
        self._changed = True

    @property
    def requests(self) -> list[TakeUpRequest]:
        """Handover requests that the learner has not answered."""
        return list(self._asked.values())

    def standing(self, index: int, spawn: int, leases: Sequence[SlotRef], stop: bool) -> ev.Standing:
        """What worker `index` is to know: what it is to step, how far that is accepted, and what the caller adds."""
        part, records = self._parts[index], self._streams.records
        named = part.told | part.orders.keys() | part.leaving
        acked = {v: (records[v].incarnation, records[v].next_index) for v in named}
        orders = None if part.heard_serial == part.serial else tuple(part.orders.values())
        left = not part.orders and not part.leaving and self._membership.has_left(index)
        return ev.Standing(spawn, leases, acked, orders, part.serial, left or stop)

    def due(self, index: int) -> int:
        """Vector envs of the worker whose next segment may be stepped now."""
        orders = self._parts[index].orders
        if not self._sync:
            return len(orders)
        n, records = self._version.n if self._version else 0, self._streams.records
        return sum(records[v].next_index <= n for v in orders)

    def is_leaving(self, index: int) -> bool:
        """Whether the worker has vector envs that it was taken off and has not let go."""
        return bool(self._parts[index].leaving)

    def join(self, index: int, spawn: int = 0) -> None:
        """A new process of worker `index` is there."""
        self._parts[index] = _Part(spawn)
        self._changed = True

    def leave(self, index: int) -> None:
        """The process is gone, and what it sealed is accepted: what it did not seal is counted."""
        part = self._parts.pop(index)
        for vector_env in (*part.orders, *part.leaving):
            self._streams.sweep(vector_env)
            del self.holders[vector_env]
        self._changed = True

    def review(self) -> None:
        """Members changed: `place` has to look again."""
        self._changed = True

    def await_claims(self) -> None:
        """Until `end_claims` those who step vector envs may claim them; the others stay unclaimed."""
        self._membership.await_hosts()
        if self._sync:
            held = ((v, r) for v, r in enumerate(self._streams.records) if r.holder != NOBODY)
            self._awaited = {v: record.holder for v, record in held if record.swept != record.incarnation}

    def end_claims_of_dead(self, workers: Iterable[int], alive: Mapping[int, int]) -> None:
        """An agent has reported which of its `workers` are alive; claims of other processes of it do not count."""
        theirs = set(workers)
        for vector_env, (index, spawn) in list(self._awaited.items()):
            if index in theirs and alive.get(index) != spawn:
                del self._awaited[vector_env]
                self._changed = True

    def end_claims(self) -> None:
        """A process that has not claimed what it stepped is gone."""
        self._changed = self._membership.end_wait() or self._changed or bool(self._awaited)
        self._awaited.clear()

    def claim(self, index: int, streams: Mapping[int, int], stopped: Collection[int] = ()) -> None:
        """A worker that outlived a broker continues with what it steps (vector env to incarnation).

        It cannot continue with a stopped one: it is leaving it, as under the previous broker.
        """
        for vector_env, incarnation in streams.items():
            if vector_env < len(self._streams.records) and vector_env not in self.holders:
                record = self._streams.records[vector_env]
                if record.incarnation != incarnation or incarnation == record.swept:
                    continue
                if vector_env in stopped:
                    self._parts[index].leaving.add(vector_env)
                    self.holders[vector_env] = index
                else:
                    self._give(index, StreamOrder(vector_env, incarnation, record.next_index, None))
                    self._membership.leave_with(vector_env, index)
                self._awaited.pop(vector_env, None)

    def hear(self, said: ev.WorkerIs) -> bool:
        """Which orders a worker follows, and what it has in hand. True: accept all it sealed, then `let_go`."""
        part = self._parts[said.index]
        part.heard_serial = said.serial
        part.told = frozenset(v for v in said.streams if v < len(self._streams.records))
        for vector_env, order in part.orders.items():
            if order.states is not None and said.streams.get(vector_env) == order.incarnation:
                part.orders[vector_env] = replace(order, states=None)  # it steps it: the record has served
        for vector_env, index, rows in said.open_rows if said.remote else ():
            named = vector_env in part.told and self.holders.get(vector_env) == said.index
            if named and said.streams[vector_env] == self._streams.records[vector_env].incarnation:
                self._streams.report_open(vector_env, index, rows)
        if said.serial != part.serial:
            return False
        for vector_env in said.stopped:  # another broker gave it back, and could not know that it was taken off
            if vector_env in part.orders:
                self._take_off(said.index, vector_env)
        return bool(part.leaving)

    def unbegun(self, vector_env: int, incarnation: int) -> StreamOrder | None:
        """An order with states whose worker has not reported yet that it steps the vector env."""
        holder = self.holders.get(vector_env)
        order = None if holder is None else self._parts[holder].orders.get(vector_env)
        return order if order is not None and order.states and order.incarnation == incarnation else None

    def let_go(self, index: int) -> None:
        """What the worker was taken off and names no more is free."""
        part = self._parts[index]
        for vector_env in part.leaving - part.told:
            part.leaving.discard(vector_env)
            del self.holders[vector_env]
            self._streams.sweep(vector_env)
            self._changed = True

    def announce(self, version: Version, back: Sequence[int] | None) -> None:
        """The learner's new version; `back`: the rows of each vector env before it, when it rolled back to it."""
        records = self._streams.records
        if self._sync and back is not None:
            self._go_back(_GoneBack(version, back))
        elif self._sync and any(r.incarnation >= 0 and r.next_index > version.n + 1 for r in records):
            self._actions.append(
                ev.Fail(f"the learner rolled back to version {version}, older than the stored rows: resume the run")
            )
        self._changed = self._changed or self._version is None
        self._version = version

    def answer(self, take_up: TakeUp) -> None:
        """The learner reports where a vector env continues."""
        request = self._asked.get(take_up.vector_env)
        if request is None or request.incarnation != take_up.incarnation:
            return
        del self._asked[take_up.vector_env]
        self._changed = True  # whoever is its owner by now
        if self._membership.owner(take_up.vector_env) in self._parts:
            self._begin(StreamOrder(take_up.vector_env, take_up.incarnation, take_up.next_index, take_up.states))

    def place(self) -> None:
        """Every vector env to its owner, or on its way to it; once `min_workers` have been there."""
        if not self._changed:
            return
        self._changed = False
        self._begun = self._begun or len(self._parts) >= self._min_workers
        if not self._begun:
            return
        self._membership.balance()
        for vector_env in range(self._vector_envs):
            owner, holder = self._membership.owner(vector_env), self.holders.get(vector_env)
            if holder is not None and (holder != owner or self._is_behind(vector_env)):
                self._take_off(holder, vector_env)
            elif holder is None and owner in self._parts and vector_env not in self._awaited:
                self._hand_over(vector_env)

    def _take_off(self, index: int, vector_env: int) -> None:
        """Move it: first its holder reports that it no longer steps it, and all its segments are accepted."""
        part = self._parts[index]
        if vector_env in part.orders:
            del part.orders[vector_env]
            part.leaving.add(vector_env)
            part.serial += 1
            self._actions.append(ev.Reply(index))

    def _hand_over(self, vector_env: int) -> None:
        """It has no holder: begin it, or request its start state from the learner."""
        if vector_env in self._asked or (self._resume and self._version is None):
            return
        record = self._streams.records[vector_env]
        if record.incarnation < 0 and not self._resume:
            self._begin(StreamOrder(vector_env, 0 if self._back is None else self._back.incarnation, 0, None))
            return
        if record.incarnation >= 0:
            self._streams.sweep(vector_env)
        if not self._open_again(vector_env):
            return
        first = self._version.incarnation << RESUMED_SHIFT if self._resume and self._version else 0
        incarnation = max(record.incarnation + 1, first)
        if not self._sync:
            self._begin(StreamOrder(vector_env, incarnation, 0, None))
        else:
            self._asked[vector_env] = TakeUpRequest(vector_env, incarnation, record.next_index)
            self._actions.append(ev.Ask())

    def _begin(self, order: StreamOrder) -> None:
        index = self._membership.owner(order.vector_env)
        assert index is not None, "checked before"
        holder = index, self._parts[index].spawn
        self._streams.take_up(order.vector_env, order.incarnation, order.next_index, holder)
        self._give(index, order)
        self._actions.append(ev.Reply(index))

    def _give(self, index: int, order: StreamOrder) -> None:
        part = self._parts[index]
        part.orders[order.vector_env] = order
        part.serial += 1
        self.holders[order.vector_env] = index

    def _go_back(self, back: _GoneBack) -> None:
        """Positions from there on are open again: every vector env is taken off its holder, then handed over again."""
        if len(back.rows) != self._vector_envs:
            self._actions.append(ev.Refuse("value"))
            return
        self._back, self._changed = back, True
        for vector_env in range(len(back.rows)):
            if self._is_behind(vector_env):
                self._asked.pop(vector_env, None)

    def _is_behind(self, vector_env: int) -> bool:
        """Whether its stream record still has what the learner rolled back from."""
        return self._back is not None and 0 <= self._streams.records[vector_env].incarnation < self._back.incarnation

    def _open_again(self, vector_env: int) -> bool:
        """Abandon in its stream record what the learner rolled back from. False when they have not that much."""
        back = self._back
        if back is None or not self._is_behind(vector_env):
            return True
        if self._streams.roll_back(vector_env, back.incarnation, back.version.n, back.rows[vector_env]):
            return True
        self._actions.append(ev.Fail(f"the learner rolled back to version {back.version}, newer than the stored rows"))
        return False
