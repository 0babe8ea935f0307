"""Which worker writes into which slot, and booking what it sealed: in order per vector env, each segment once.

Only the holder of a vector env (`zmqrl.broker.placement`) adds to it; descriptors are hints, a slot's words count.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence, Set

from zmqrl.broker import events as ev
from zmqrl.broker.limiter import LeaseLimiter
from zmqrl.broker.placement import Placement
from zmqrl.broker.slots import Slots
from zmqrl.broker.streams import Streams
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.arena import ACCEPT, LEASE, Arena
from zmqrl.types import SegmentMeta, SlotRef


class Booking:
    """Part of the broker's state: the leases of the workers that are there, by their index."""

    def __init__(
        self, plan: RunPlan, arena: Arena, streams: Streams, placement: Placement, actions: list[ev.Action]
    ) -> None:
        """To be made before `Arena.begin_broker`. `actions`: receives the actions to perform."""
        self._arena, self._streams, self._placement, self._actions = arena, streams, placement, actions
        self._leases_per_worker = plan.config.limits.leases_per_worker
        self._sync, self._resume = plan.config.run.mode != "async", plan.resume
        self._limiter = LeaseLimiter(plan)
        self._slots = Slots(arena)
        self._leases: dict[int, dict[int, SlotRef]] = {}
        """Worker to slot to lease."""
        self._turn = itertools.count(1)
        self._turns: dict[int, int] = {}
        """Worker to the turn in which it got its last lease."""
        self._remote: set[int] = set()
        """Of these, who have no arena."""
        self.settled = arena.broker_incarnation == 0
        """Every worker of the broker before has reported or is dead: what no process claimed is free."""
        self._base: int | None = arena.base_env_steps()
        """env_steps of the run before this arena."""
        self._released = True

    @property
    def is_open(self) -> bool:
        """Whether leases can be given out: all slots are known."""
        return self.settled and not (self._resume and self._base is None)

    def leases(self, index: int) -> Collection[SlotRef]:
        """Of a worker that is there."""
        return self._leases[index].values()

    def join(self, index: int, remote: bool = False) -> None:
        """A new process of worker `index` is there; a `remote` one has no arena."""
        self._leases[index] = {}
        (self._remote.add if remote else self._remote.discard)(index)

    def claim(self, index: int, leases: Iterable[SlotRef]) -> None:
        """A worker that outlived a broker keeps its leases."""
        for ref in leases if not self.settled else ():
            leased = ref.slot in self._slots.in_doubt and self._arena.word(ref.slot, LEASE) == ref.generation
            # Else it was booked and released since, and the worker has not heard: free, not its own.
            if leased and self._arena.word(ref.slot, ACCEPT) < ref.generation:
                self._slots.claim(ref.slot)
                self._leases[index][ref.slot] = ref

    def settle(self) -> None:
        """No other process will claim: accept what is sealed, free the rest."""
        self.settled = True
        self._forward(self.accept_all_sealed())
        self._slots.settle()

    def begin_at(self, env_steps: int) -> None:
        """The learner's first notice: what the run had before this arena, and which slots a resumed one filled."""
        if self._base is not None:
            return
        self._base = env_steps if self._resume else 0
        if self._resume:
            self._slots = Slots(self._arena)
            if self.settled:
                self._slots.settle()
        self._arena.set_base_env_steps(self._base)

    def report(self, updates: int) -> None:
        """Where the learner is; it may have released slots."""
        self._limiter.report(updates)
        self._released = True

    def take_sealed(self, index: int, refs: Iterable[SlotRef]) -> None:
        """Descriptors of a worker that is there."""
        leases = self._leases[index]
        booked: list[SlotRef] = []
        for ref in refs:
            if leases.get(ref.slot) == ref:
                if self._streams.is_sealed(ref) and not self._book(index, ref, booked):
                    self._book_in_order(index, booked)
            elif 0 <= ref.slot < self._arena.layout.slots and self._arena.word(ref.slot, ACCEPT) == ref.generation:
                self._streams.refuse_duplicate(ref)
        self._forward(booked)
        self._actions.append(ev.Reply(index))

    def take_delivered(self, said: ev.Delivered) -> None:
        """A whole segment from another host: write it into the slot that its credit names, and seal it."""
        index, ref = said.index, said.ref
        if self._leases[index].get(ref.slot) == ref and not self._streams.is_sealed(ref):
            if not self._is_its_own(index, said.meta):
                self._actions.append(ev.Refuse("segment header"))
                return
            if self._streams.is_late(said.meta):
                self._streams.refuse_late(said.meta)
                self._take_back(index, ref)
            else:
                self._fill(ref, said)
        self.take_sealed(index, (ref,))

    def _fill(self, ref: SlotRef, said: ev.Delivered) -> None:
        for name, column in said.columns.items():
            self._arena.columns[name][ref.slot] = column
        self._arena.write_meta(ref.slot, said.meta)
        self._streams.report_open(said.meta.id.vector_env, said.meta.id.index, said.meta.rows)
        self._arena.seal(ref)

    def _take_back(self, index: int, ref: SlotRef) -> None:
        del self._leases[index][ref.slot]
        self._arena.lease(ref.slot)
        self._slots.free(ref.slot)

    def book_all(self, index: int, dead: bool = False) -> None:
        """All that a worker has sealed, descriptors or none; of a `dead` one also what it could not count itself."""
        booked: list[SlotRef] = []
        self._book_in_order(index, booked, dead)
        self._forward(booked)

    def leave(self, index: int) -> None:
        """The process is gone, and all it sealed is accepted: take its slots back."""
        for ref in list(self._leases[index].values()):
            self._take_back(index, ref)
        del self._leases[index]

    def accept_all_sealed(self) -> list[SlotRef]:
        """Accept whatever is sealed, in order: what dead workers left, and all of it when the broker ends."""
        booked: list[SlotRef] = []
        lessees = {ref: index for index, leases in self._leases.items() for ref in leases.values()}
        for ref in self._arena.sealed():
            index = lessees.get(ref)
            if index is not None:
                self._book(index, ref, booked)
                continue
            meta = self._arena.meta(ref.slot)
            if self._streams.is_sane(meta) and self._streams.accept(ref, meta, complete=True):
                self._slots.hold(ref)
                booked.append(ref)
        return booked

    def lease_out(self, members: Set[int]) -> None:
        """Free slots to those of `members` who have too few, while the limiter allows it.

        The worker with the fewest leases is served first; of several, the one whose last lease is the oldest: where
        slots are freed one at a time, a fixed order would give each of them to the same worker.
        Also to workers without an arena that stop stepping: what they sealed needs a credit after a broker's death.
        """
        self._slots.collect(thoroughly=self._released)
        self._released = False
        poor = [i for i, held in self._leases.items() if len(held) < self._most_leases(i)]
        served = [i for i in poor if i in members or (i in self._remote and self._placement.is_leaving(i))]
        wanting = [(len(self._leases[i]), self._turns.get(i, 0), i) for i in served]
        outstanding = sum(map(len, self._leases.values())) if wanting else 0
        while wanting and self._limiter.allows((self._base or 0) + self._streams.stored, outstanding):
            ref = self._slots.lease()
            if ref is None:
                return
            count, turn, index = min(wanting)
            wanting.remove((count, turn, index))
            self._leases[index][ref.slot] = ref
            outstanding += 1
            self._turns[index] = turn = next(self._turn)
            if count + 1 < self._most_leases(index):
                wanting.append((count + 1, turn, index))
            self._actions.append(ev.Reply(index))

    def _most_leases(self, index: int) -> int:
        """`leases_per_worker`, in sync also one for each position that the worker has to fill yet.

        Never more: leases are not taken back, and what one worker has too many another lacks for its quota.
        """
        most = self._leases_per_worker
        return max(most, self._placement.due(index)) if self._sync else most

    def _book(self, index: int, ref: SlotRef, booked: list[SlotRef], dead: bool = False) -> bool:
        """False when its turn has not come: a descriptor before it was lost, or its worker has not counted it yet."""
        meta = self._arena.meta(ref.slot)
        if not self._is_its_own(index, meta):
            self._actions.append(ev.Refuse("segment header"))
            self._arena.lease(ref.slot)
            accepted: bool | None = False
        else:
            accepted = self._streams.accept(ref, meta, complete=dead or index in self._remote)
        if accepted is None:
            return False
        del self._leases[index][ref.slot]
        if accepted:
            self._slots.hold(ref)
            booked.append(ref)
        else:
            self._slots.free(ref.slot)
        return True

    def _book_in_order(self, index: int, booked: list[SlotRef], dead: bool = False) -> None:
        sealed = [ref for ref in self._leases[index].values() if self._streams.is_sealed(ref)]
        for ref in sorted(sealed, key=lambda r: self._arena.meta(r.slot).id):
            self._book(index, ref, booked, dead)

    def _is_its_own(self, index: int, meta: SegmentMeta) -> bool:
        """Whether the header names a stream of this worker, or an incarnation that has passed."""
        if not self._streams.is_sane(meta):
            return False
        vector_env, incarnation, _ = meta.id
        own = self._placement.holders.get(vector_env) == index
        return own or incarnation < self._streams.records[vector_env].incarnation

    def _forward(self, booked: Sequence[SlotRef]) -> None:
        if booked:
            self._actions.append(ev.Forward(tuple(booked)))
