"""The broker's decisions: `handle(event) -> [action]`. The arena is its memory, so a new broker continues from there.

`BrokerState` knows which processes are there; what they step is `placement`, what they write into is `booking`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from zmqrl.broker import events as ev
from zmqrl.broker.booking import Booking
from zmqrl.broker.membership import Membership
from zmqrl.broker.orders import StreamOrder, TakeUpRequest
from zmqrl.broker.placement import Placement
from zmqrl.broker.streams import Streams
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, SlotRef

MOST_WORKERS = 1 << 16


@dataclass
class _Process:
    """Of a worker, from its first message until it is known to be dead."""

    spawn: int
    remote: bool
    listed: bool = False
    """An agent has named it alive: absent from now on means dead."""


class BrokerState:
    """Streams, leases and members. One thread; no I/O but the arena."""

    def __init__(self, plan: RunPlan, arena: Arena) -> None:
        env, sync = plan.config.env, plan.config.run.mode != "async"
        self._actions: list[ev.Action] = []
        streams = Streams(arena, env.num_envs * env.segment_steps, self._actions)
        streams.mend()
        self._membership = Membership(sync, env.vector_envs if sync else plan.streams)
        self._placement = Placement(plan, streams, self._membership, self._actions)
        self._booking = Booking(plan, arena, streams, self._placement, self._actions)
        self.incarnation = arena.begin_broker()
        self.notice: Notice | None = None
        self._learner_host = plan.config.learner.host
        self._most_workers = MOST_WORKERS if sync else plan.streams
        self._workers: dict[int, _Process] = {}
        self._unheard: dict[int, int] | None = None
        """Workers (index to spawn) of the broker before that live and have reported nothing to this one."""
        self._ending = False

    def handle(self, event: ev.Event) -> list[ev.Action]:
        """Take one event in. What processes known to be dead say changes nothing."""
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[ev.Event]) -> list[ev.Action]:
        """Take a round's events in, in order; streams and leases are given out once, at its end."""
        for event in events:
            self._take(event)
        if self._booking.is_open:
            self._placement.place()
            self._booking.lease_out(self._membership.members)
        return self._pop_actions()

    def _pop_actions(self) -> list[ev.Action]:
        actions = self._actions[:]
        self._actions.clear()
        return actions

    def _take(self, event: ev.Event) -> None:
        if isinstance(event, ev.Sealed):
            if self._is_there(event.index, event.spawn):
                self._booking.take_sealed(event.index, event.refs)
        elif isinstance(event, ev.Delivered):
            if self._is_there(event.index, event.spawn) and self._workers[event.index].remote:
                self._booking.take_delivered(event)
        elif isinstance(event, ev.WorkerIs):
            self._worker_is(event)
        elif isinstance(event, ev.LearnerIs):
            self._booking.report(event.updates)
        elif isinstance(event, ev.Announced):
            self._announced(event)
        elif isinstance(event, ev.HostIs):
            self._host_is(event)
            if event.given_up and not self._membership.members:
                self._actions.append(ev.Fail("all workers failed and are not restarted"))
        elif isinstance(event, ev.HostGone):  # the launcher knows whether another host is to come
            self._host_is(ev.HostIs({}, event.workers, event.host))
        elif isinstance(event, ev.Answered):
            self._placement.answer(event.take_up)
        elif isinstance(event, ev.WaitedEnough):
            self._placement.end_claims()
        elif self._is_there(event.index, event.spawn) and self._may_expire(event):
            self._bury(event.index)

    def _may_expire(self, event: ev.Goodbye | ev.Silent) -> bool:
        """A departed worker writes no more. A silent one with the arena may wake up and write: no lease expires."""
        return isinstance(event, ev.Goodbye) or self._workers[event.index].remote

    def await_claims(self) -> None:
        """After another broker, with other hosts: until `WaitedEnough` those who step vector envs may claim them."""
        self._placement.await_claims()

    @property
    def requests(self) -> list[TakeUpRequest]:
        """Handover requests that the learner has not answered."""
        return self._placement.requests

    def standing(self, index: int) -> ev.Standing | None:
        """What worker `index` is to know; None for a stranger."""
        worker = self._workers.get(index)
        if worker is None:
            return None
        leases, stop = tuple(self._booking.leases(index)), self._ending and worker.remote
        return self._placement.standing(index, worker.spawn, leases, stop)

    def unbegun(self, vector_env: int, incarnation: int) -> StreamOrder | None:
        """An order with states whose worker has not reported yet that it steps the vector env."""
        return self._placement.unbegun(vector_env, incarnation)

    def holds(self, index: int, spawn: int, vector_env: int) -> bool:
        """Whether this process is to step the vector env."""
        return self._is_there(index, spawn) and self._placement.holders.get(vector_env) == index

    @property
    def has_remote(self) -> bool:
        """Whether workers of other hosts are there."""
        return any(worker.remote for worker in self._workers.values())

    def end_remote(self) -> list[int]:
        """The run ends: with their next assignments workers of other hosts stop. Returns these workers."""
        self._ending = True
        return [index for index, worker in self._workers.items() if worker.remote]

    def may_be(self, index: int) -> bool:
        """Whether a worker can have this index."""
        return index < self._most_workers

    def gave_up(self, workers: Collection[int]) -> bool:
        """Whether these are workers that the run continues without."""
        return bool(workers) and self._membership.given_up.issuperset(workers)

    def has_work(self, index: int) -> bool:
        """Whether a worker could step now: it has a lease and, in sync, a vector env whose turn it is.

        Workers with heartbeats whose leases are not reported yet: a new broker grants them no lease before.
        """
        return index not in self._workers or (bool(self._booking.leases(index)) and self._placement.due(index) > 0)

    def pop_dropped(self) -> list[ev.Dropped]:
        """What was dropped since the last round, when no round follows."""
        return [action for action in self._pop_actions() if isinstance(action, ev.Dropped)]

    def accept_all_sealed(self) -> list[SlotRef]:
        """The broker ends: accept whatever is sealed, in order, and count undelivered rows of other hosts."""
        for index in self.end_remote():
            self._bury(index)
        return self._booking.accept_all_sealed()

    def _is_there(self, index: int, spawn: int) -> bool:
        worker = self._workers.get(index)
        return worker is not None and worker.spawn == spawn

    def _worker_is(self, event: ev.WorkerIs) -> None:
        if not self.may_be(event.index):
            self._actions.append(ev.Refuse("worker"))
            return
        if event.index in self._membership.given_up:
            return  # of a host that was cut off for too long: its agent is told, and ends it
        worker = self._workers.get(event.index)
        if worker is not None and (event.spawn < worker.spawn or (worker.listed and event.spawn != worker.spawn)):
            return
        if not self._booking.settled and event.broker is not None and event.broker != self.incarnation:
            self._actions.append(ev.Reply(event.index))
            return
        if worker is not None and worker.spawn < event.spawn:  # an agent starts a successor only after it reaped
            self._bury(event.index)
        if not self._is_there(event.index, event.spawn):
            self._welcome(event)
        if self._placement.hear(event):
            self._booking.book_all(event.index)
            self._placement.let_go(event.index)
        if self._unheard is not None:
            self._unheard.pop(event.index, None)
            self._settle_if_heard()
        self._actions.append(ev.Reply(event.index))
        if self._placement.requests:
            self._actions.append(ev.Ask())

    def _welcome(self, event: ev.WorkerIs) -> None:
        """A process that is new to this broker; one that outlived the broker before continues with what it has."""
        self._workers[event.index] = _Process(event.spawn, event.remote)
        self._membership.greet(event.index)
        self._booking.join(event.index, event.remote)
        self._booking.claim(event.index, event.leases)
        self._placement.join(event.index, event.spawn)
        self._placement.claim(event.index, event.streams, event.stopped)

    def _host_is(self, event: ev.HostIs) -> None:
        said = (event.workers, event.given_up, event.alive)
        held, given_up, alive = ([i for i in indexes if self.may_be(i)] for indexes in said)
        if self._membership.hear(event.host, held, given_up, alive):
            self._placement.review()
        theirs = [i for i in (*held, *given_up) if self._membership.is_of(i, event.host)]
        self._placement.end_claims_of_dead(theirs, event.alive)
        for index in [i for i in self._workers if self._membership.is_of(i, event.host)]:
            worker = self._workers[index]
            if index in self._membership.given_up or (worker.listed and event.alive.get(index) != worker.spawn):
                self._bury(index)
            elif event.alive.get(index) == worker.spawn:
                worker.listed = True
        if not self._booking.settled and event.host == self._learner_host:
            if self._unheard is None:
                self._unheard = {i: s for i, s in event.alive.items() if i not in self._workers}
            self._unheard = {i: s for i, s in self._unheard.items() if event.alive.get(i) == s}
            self._settle_if_heard()

    def _settle_if_heard(self) -> None:
        if not self._unheard and not self._booking.settled:
            self._unheard = None
            self._booking.settle()

    def _bury(self, index: int) -> None:
        """The process is gone: accept what it sealed, count what it did not, take its slots back."""
        del self._workers[index]
        self._booking.book_all(index, dead=True)
        self._placement.leave(index)
        self._booking.leave(index)

    def _announced(self, event: ev.Announced) -> None:
        notice = event.notice
        if self.notice is not None and notice.version <= self.notice.version:
            return
        self._booking.begin_at(notice.env_steps)
        self._placement.announce(notice.version, event.back)
        self.notice = notice
        self._actions.append(ev.Publish(notice))
