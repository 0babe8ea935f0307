"""Which worker writes into which slot, and what it sealed: accepted in order per vector env, each segment once.

Only the holder of a vector env (`zmqrl.broker.assignment`) adds to it; descriptors are hints, a slot's words count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from zmqrl.broker import events as ev
from zmqrl.broker.assignment import Assignment
from zmqrl.broker.leases import DueSegments, LeaseLimiter, Slots
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.plan import RunPlan
from zmqrl.errors import WireError
from zmqrl.messages.frames import PackedColumn
from zmqrl.shared_memory.arena import ACCEPT, LEASE, Arena
from zmqrl.types import SegmentMeta, SlotRef


class Acceptance:
    """Part of the broker's state: gives out leases and takes in what was sealed under them."""

    def __init__(
        self, plan: RunPlan, arena: Arena, ledger: StreamLedger, assignment: Assignment, workers: Workers, first: bool
    ) -> None:
        """`first`: no broker had this arena before, so no worker can have a lease."""
        self._arena, self._ledger, self._assignment, self._workers = arena, ledger, assignment, workers
        self._due: DueSegments = assignment.due
        self._resume = plan.resume
        self._limiter = LeaseLimiter(plan)
        self._slots = Slots(arena, first)
        self._turn = itertools.count(1)
        self.recovered = first
        """Every worker of the broker before has reported or is dead: what no process claimed is free."""
        self._base: int | None = arena.base_env_steps()
        """env_steps of the run before this arena."""
        self._released = True

    @property
    def is_open(self) -> bool:
        """Whether leases can be given out: all slots are known."""
        return self.recovered and not (self._resume and self._base is None)

    # after another broker

    def claim(self, process: WorkerProcess, leases: Iterable[SlotRef]) -> None:
        """A process that outlived a broker keeps its leases."""
        for ref in leases if not self.recovered else ():
            leased = ref.slot in self._slots.unresolved and self._arena.word(ref.slot, LEASE) == ref.generation
            # Else it was accepted and released since, and the worker has not received that: free, not its own.
            if leased and self._arena.word(ref.slot, ACCEPT) < ref.generation:
                self._slots.claim(ref.slot)
                process.leases[ref.slot] = ref

    def finish_recovery(self) -> list[ev.Action]:
        """No other process will claim: accept what is sealed, free the rest."""
        self.recovered = True
        actions = self.accept_all_sealed()
        self._slots.free_unresolved()
        return actions

    def begin_at(self, env_steps: int) -> None:
        """The learner's first notice: what the run had before this arena, and which slots a resumed one filled."""
        if self._base is not None:
            return
        self._base = env_steps if self._resume else 0
        if self._resume:
            self._slots = Slots(self._arena, first=False)
            if self.recovered:
                self._slots.free_unresolved()
        self._arena.set_base_env_steps(self._base)

    # what was sealed

    def take_sealed(self, process: WorkerProcess, refs: Iterable[SlotRef]) -> list[ev.Action]:
        """Descriptors of a process that is there."""
        accepted, actions = list[SlotRef](), list[ev.Action]()
        for ref in refs:
            if process.leases.get(ref.slot) == ref:
                if self._ledger.is_sealed(ref) and not self._take(process, ref, accepted, actions):
                    self._take_in_order(process, accepted, actions)
            elif 0 <= ref.slot < self._arena.layout.slots and self._arena.word(ref.slot, ACCEPT) == ref.generation:
                self._ledger.refuse_duplicate(ref)
        _forward(accepted, actions)
        actions.append(ev.Reply(process.index))
        return actions

    def take_delivered(self, process: WorkerProcess, delivered: ev.Delivered) -> list[ev.Action]:
        """A whole segment from another host: write it into the slot that its credit names, and seal it."""
        ref, meta = delivered.ref, delivered.meta
        if process.leases.get(ref.slot) == ref and not self._ledger.is_sealed(ref):
            if not self._is_its_own(process, meta):
                return [ev.Refuse("segment header")]
            if self._ledger.is_late(meta):
                self._ledger.refuse_late(meta)
                self._take_back(process, ref)
            else:
                try:
                    self._fill(delivered)
                except WireError as error:
                    return [ev.Refuse(error.reason)]
        return self.take_sealed(process, (ref,))

    def _fill(self, delivered: ev.Delivered) -> None:
        slot, meta = delivered.ref.slot, delivered.meta
        for name, column in delivered.columns.items():
            if isinstance(column, PackedColumn):
                column.unpack(self._arena.columns[name][slot])
            else:
                self._arena.columns[name][slot] = column
        self._arena.write_meta(slot, meta)
        self._ledger.report_open(meta.id.vector_env, meta.id.index, meta.rows)
        self._arena.seal(delivered.ref)

    def take_all_of(self, process: WorkerProcess, dead: bool = False) -> list[ev.Action]:
        """All that it has sealed, descriptors or none; of a `dead` one also what it could not count itself."""
        accepted, actions = list[SlotRef](), list[ev.Action]()
        self._take_in_order(process, accepted, actions, dead)
        _forward(accepted, actions)
        return actions

    def accept_all_sealed(self) -> list[ev.Action]:
        """Accept whatever is sealed, in order: what dead workers left, and all of it when the broker ends."""
        accepted, actions = list[SlotRef](), list[ev.Action]()
        lessees = {ref: process for process in self._workers.processes() for ref in process.leases.values()}
        for ref in self._arena.sealed():
            process = lessees.get(ref)
            if process is not None:
                self._take(process, ref, accepted, actions)
                continue
            meta = self._arena.meta(ref.slot)
            if self._ledger.is_sane(meta) and self._ledger.accept(ref, meta, complete=True):
                self._slots.hold(ref)
                accepted.append(ref)
        _forward(accepted, actions)
        return actions

    def _take(
        self,
        process: WorkerProcess,
        ref: SlotRef,
        accepted: list[SlotRef],
        actions: list[ev.Action],
        dead: bool = False,
    ) -> bool:
        """False when its turn has not come: a descriptor before it was lost, or its worker has not counted it yet."""
        meta = self._arena.meta(ref.slot)
        if self._is_its_own(process, meta):
            outcome = self._ledger.accept(ref, meta, complete=dead or process.remote)
        else:
            actions.append(ev.Refuse("segment header"))
            self._arena.lease(ref.slot)
            outcome = False
        if outcome is None:
            return False
        del process.leases[ref.slot]
        if outcome:
            self._slots.hold(ref)
            accepted.append(ref)
        else:
            self._slots.free(ref.slot)
        return True

    def _take_in_order(
        self, process: WorkerProcess, accepted: list[SlotRef], actions: list[ev.Action], dead: bool = False
    ) -> None:
        sealed = [ref for ref in process.leases.values() if self._ledger.is_sealed(ref)]
        for ref in sorted(sealed, key=lambda r: self._arena.meta(r.slot).id):
            self._take(process, ref, accepted, actions, dead)

    def _is_its_own(self, process: WorkerProcess, meta: SegmentMeta) -> bool:
        """Whether the header names a stream of this process, or an incarnation that has passed."""
        if not self._ledger.is_sane(meta):
            return False
        vector_env, incarnation, _ = meta.id
        own = self._assignment.holders.get(vector_env) == process.index
        return own or incarnation < self._ledger.records[vector_env].incarnation

    # leases

    def report_progress(self, env_steps: int, updates: int) -> None:
        """Where the learner is; it may have released slots."""
        self._limiter.report(env_steps, updates)
        self._released = True

    def revoke_leases(self, process: WorkerProcess) -> None:
        """Revoke the leases of a dead process; all that it sealed is accepted."""
        for ref in list(process.leases.values()):
            self._take_back(process, ref)

    def _take_back(self, process: WorkerProcess, ref: SlotRef) -> None:
        del process.leases[ref.slot]
        self._arena.lease(ref.slot)
        self._slots.free(ref.slot)

    def lease_out(self) -> list[ev.Action]:
        """Free slots to those members who have too few, while the limiter allows it.

        The worker with the fewest leases is served first; of several, the one whose last lease is the oldest: where
        slots are freed one at a time, a fixed order would give each of them to the same worker.
        Also to workers without an arena that stop stepping: what they sealed needs a credit after a broker's death.
        """
        self._slots.collect(thoroughly=self._released)
        self._released = False
        actions: list[ev.Action] = []
        wanting, outstanding = self._under_leased()
        spare = self._due.spare_leases()
        stored = (self._base or 0) + self._ledger.stored
        while wanting and self._limiter.allows(stored, outstanding, self._slots.count_held):
            has_enough, count, turn, index = min(wanting)
            if has_enough and spare >= self._due.most_spare:
                break
            ref = self._slots.lease()
            if ref is None:
                break
            wanting.remove((has_enough, count, turn, index))
            worker, turn = self._workers.of(index), next(self._turn)
            assert worker.process is not None, "without a process it wants no lease"
            worker.process.leases[ref.slot] = ref
            worker.last_turn = turn
            outstanding += 1
            spare += has_enough
            if count + 1 < self._due.most_leases(worker.process):
                wanting.append((self._due.has_enough(worker.process), count + 1, turn, index))
            actions.append(ev.Reply(index))
        return actions

    def _under_leased(self) -> tuple[list[tuple[bool, int, int, int]], int]:
        """Workers that may have more leases: whether each has enough, its leases, the turn of the last one, its index.

        Second, the leases of all workers.
        """
        found, outstanding = [], 0
        for worker in self._workers:
            process = worker.process
            if process is None:
                continue
            count = len(process.leases)
            outstanding += count
            is_served = worker.is_member or (process.remote and process.leaving)
            if is_served and count < self._due.most_leases(process):
                found.append((self._due.has_enough(process), count, worker.last_turn, worker.index))
        return found, outstanding


def _forward(accepted: Sequence[SlotRef], actions: list[ev.Action]) -> None:
    if accepted:
        actions.append(ev.Forward(tuple(accepted)))
