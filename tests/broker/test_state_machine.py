"""Random lives of workers, brokers and the learner over one arena: the stream records are right whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import Handover
from zmqrl.broker.state import BrokerState
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord, StreamTable
from zmqrl.types import Notice, SegmentId, SegmentMeta, SlotRef, Version

WORKERS = 2
SLOTS = 9
FUSES = st.none() | st.integers(0, 6)
"""Before which of its stores the broker dies, if at all."""
SHUFFLES = st.randoms(use_true_random=False)


class BrokerDied(Exception):
    """SIGKILL between two stores."""


@dataclass
class Worker:
    """What a worker process knows."""

    spawn: int
    alive: bool = True
    broker: int = -1
    serial: int = -1
    leases: list[SlotRef] = field(default_factory=list)
    sealed: dict[SlotRef, SegmentId] = field(default_factory=dict)
    streams: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Vector env to (incarnation, next index)."""
    mail: list[SlotRef] = field(default_factory=list)
    """Descriptors not delivered yet."""
    open_rows: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    """Vector env to the incarnation that it stopped last: its env is closed, so it cannot continue."""
    impossible: dict[int, int] = field(default_factory=dict)
    """Of the newest assignments: a broker that did not know assigned them again."""


class BusMachine(RuleBasedStateMachine):
    """The test is broker, network, agent, workers and learner in one thread."""

    @initialize(mode=st.sampled_from(("sync", "async")), vector_envs=st.integers(2, 3))
    def begin(self, mode: Any, vector_envs: int) -> None:
        streams = WORKERS if mode == "async" else vector_envs
        self.sync = mode == "sync"
        self.arena = Arena.private(bus_plan(mode, WORKERS, streams, slots=SLOTS))
        self.plan = bus_plan(mode, WORKERS, streams, slots=SLOTS)
        self.fuse: int | None = None
        self._arm()
        self.version = 0
        self.workers = [Worker(0) for _ in range(WORKERS)]
        self.rows: dict[SegmentId, int] = {}
        self.taken: list[SegmentId] = []
        self.learner = 0
        self.gone_back: list[tuple[int, int]] = []
        self.back: tuple[int, ...] | None = None
        self.held: list[SlotRef] = []
        self.seen: set[SlotRef] = set()
        self.held_here: tuple[int, ...] = (0, 1)
        self.begins: dict[tuple[int, int], int] = {}
        self.unsealed = 0
        self.leased: set[int] = set()
        self.state = BrokerState(self.plan, self.arena)

    def _arm(self) -> None:
        """Every store of the broker may be its last."""
        arena, table = self.arena, self.arena.streams
        for owner, names in ((arena, ("lease", "accept")), (table, ("write", "write_producer", "write_open"))):
            for name in names:
                setattr(owner, name, self._fused(getattr(owner, name)))

    def _fused(self, store: Callable[..., Any]) -> Callable[..., Any]:
        def stored(*values: Any) -> Any:
            if self.fuse is not None:
                if self.fuse == 0:
                    raise BrokerDied
                self.fuse -= 1
            return store(*values)

        return stored

    def deliver(self, event: Any, fuse: int | None = None) -> None:
        """To the broker, which dies before its `fuse`-th store and comes back."""
        self.fuse = fuse
        try:
            actions = self.state.handle(event)
            assert not [a for a in actions if isinstance(a, (ev.Fail,))], actions
        except BrokerDied:
            self.restart_broker()
        self.fuse = None

    @rule()
    def restart_broker(self) -> None:
        self.fuse = None
        self.state = BrokerState(self.plan, self.arena)

    # a worker
    @rule(i=st.integers(0, 1), lost=st.booleans(), fuse=FUSES)
    def says(self, i: int, lost: bool = False, fuse: int | None = None) -> None:
        worker = self.workers[i]
        if not worker.alive:
            return
        if worker.broker != self.state.incarnation:
            worker.broker, worker.serial = self.state.incarnation, -1
        streams = worker.impossible | {id.vector_env: id.incarnation for id in worker.sealed.values()}
        streams |= {v: incarnation for v, (incarnation, _) in worker.streams.items()}
        stopped = streams.keys() - worker.streams.keys()
        report = ev.WorkerReported(
            i, worker.spawn, tuple(worker.leases), streams, worker.broker, worker.serial, stopped=stopped
        )
        self.deliver(report, fuse)
        if not lost and worker.broker == self.state.incarnation:
            self.hears(i)

    def hears(self, i: int) -> None:
        worker, snapshot = self.workers[i], self.state.snapshot(i)
        if snapshot is None or snapshot.spawn != worker.spawn:
            return
        if snapshot.assignments is not None and snapshot.serial != worker.serial:
            worker.serial = snapshot.serial
            followed = {order.vector_env: order.incarnation for order in snapshot.assignments}
            worker.gone |= {v: inc for v, (inc, _) in worker.streams.items() if followed.get(v) != inc}
            worker.impossible = {v: inc for v, inc in followed.items() if worker.gone.get(v) == inc}
            for order in snapshot.assignments:
                if order.vector_env in worker.impossible:
                    continue
                if worker.streams.get(order.vector_env, (-1, 0))[0] != order.incarnation:
                    worker.streams[order.vector_env] = (order.incarnation, order.next_index)
                    self.begins.setdefault((order.vector_env, order.incarnation), order.next_index)
            for vector_env in worker.streams.keys() - (followed.keys() - worker.impossible.keys()):
                del worker.streams[vector_env]
                self.unsealed += worker.open_rows.pop(vector_env, 0)
        worker.leases = list(snapshot.leases)
        worker.sealed = {r: i for r, i in worker.sealed.items() if r in worker.leases}
        self.leased |= {ref.slot for ref in worker.leases}

    @rule(i=st.integers(0, 1), pick=st.integers(0, 7), rows=st.integers(0, ROWS))
    def steps(self, i: int, pick: int, rows: int) -> None:
        """Rows of a segment that is not sealed yet."""
        worker = self.workers[i]
        vector_env = self.due(worker, pick)
        if worker.alive and vector_env is not None:
            worker.open_rows[vector_env] = rows
            StreamTable.write_open(self.arena.streams, vector_env, worker.streams[vector_env][1], rows)

    @rule(i=st.integers(0, 1), pick=st.integers(0, 7), rows=st.integers(0, ROWS), stores=st.integers(1, 4))
    def seals(self, i: int, pick: int, rows: int = ROWS, stores: int = 3) -> None:
        """The worker dies after so many stores, if they are fewer than three."""
        worker = self.workers[i]
        vector_env, free = self.due(worker, pick), [r for r in worker.leases if r not in worker.sealed]
        if not worker.alive or vector_env is None or not free:
            return
        arena, ref = self.arena, free[pick % len(free)]
        incarnation, index = worker.streams[vector_env]
        id = SegmentId(vector_env, incarnation, index)
        arena.write_meta(ref.slot, SegmentMeta(id, Version(0, self.version), rows))
        arena.seal(ref)
        assert id not in self.rows
        self.rows[id] = rows
        worker.open_rows.pop(vector_env, None)
        if stores > 1:
            produced = arena.streams.read_producer(vector_env).produced + rows
            StreamTable.write_producer(arena.streams, vector_env, ProducerRecord(incarnation, index, produced))
        if stores > 2:
            StreamTable.write_open(arena.streams, vector_env, index + 1, 0)
            worker.streams[vector_env] = (incarnation, index + 1)
            worker.sealed[ref] = id
            worker.mail.append(ref)
        else:
            self.dies(i)

    def due(self, worker: Worker, pick: int) -> int | None:
        """A vector env of this worker that may be stepped now."""
        now = [v for v, (_, index) in sorted(worker.streams.items()) if not self.sync or index == self.version]
        return now[pick % len(now)] if now else None

    @rule(i=st.integers(0, 1), order=SHUFFLES, keep=st.booleans(), fuse=FUSES)
    def delivers(self, i: int, order: Any = None, keep: bool = False, fuse: int | None = None) -> None:
        """Descriptors in any order, perhaps again later, perhaps from one who died meanwhile."""
        worker = self.workers[i]
        refs = list(worker.mail)
        if order is not None:
            order.shuffle(refs)
        if not keep:
            worker.mail = []
        self.deliver(ev.Sealed(i, worker.spawn, tuple(refs)), fuse)

    @rule(i=st.integers(0, 1))
    def loses_its_mail(self, i: int) -> None:
        self.workers[i].mail = []

    @rule(i=st.integers(0, 1))
    def resends(self, i: int) -> None:
        if self.workers[i].alive:
            self.workers[i].mail = list(self.workers[i].sealed)

    @rule(i=st.integers(0, 1))
    def dies(self, i: int) -> None:
        worker = self.workers[i]
        if worker.alive:
            worker.alive = False
            self.unsealed += sum(worker.open_rows.values())

    @rule(i=st.integers(0, 1), fuse=FUSES)
    def notifies_shutdown(self, i: int, fuse: int | None = None) -> None:
        worker = self.workers[i]
        if worker.alive:
            self.dies(i)
            self.deliver(ev.WorkerExited(i, worker.spawn), fuse)

    # the agent
    @rule(fuse=FUSES)
    def agent_reports(self, fuse: int | None = None) -> None:
        alive = {i: w.spawn for i, w in enumerate(self.workers) if w.alive}
        self.deliver(ev.HostReported(alive, (), "local", self.held_here), fuse)

    @rule(held=st.sampled_from(((0, 1), (0,), (1,))), fuse=FUSES)
    def workers_leave_or_come(self, held: tuple[int, ...], fuse: int | None = None) -> None:
        """Drained and scaled up again, while everything goes on."""
        self.held_here = held
        self.agent_reports(fuse)

    @rule(i=st.integers(0, 1), reported=st.booleans())
    def respawns(self, i: int, reported: bool = True) -> None:
        if not self.workers[i].alive:
            if reported:
                self.agent_reports()
            self.workers[i] = Worker(self.workers[i].spawn + 1)

    # the learner
    @rule(fuse=FUSES)
    def learner_answers(self, fuse: int | None = None) -> None:
        self.learner_takes()
        for r in self.state.assignment.requests:
            done = {id.index for id in self.counted() if id.vector_env == r.vector_env}
            if len(done) < r.next_index:
                continue  # asked before the broker knew that the learner went back
            assert done == set(range(r.next_index)), "requested before everything below was accepted"
            self.deliver(ev.HandoverAnswered(Handover(r.vector_env, r.incarnation, r.next_index, ())), fuse)
            fuse = None

    @rule()
    def learner_takes(self) -> None:
        """By scan: descriptors are hints only."""
        for ref in self.arena.held():
            if ref not in self.seen:
                self.seen.add(ref)
                self.held.append(ref)
                meta = self.arena.meta(ref.slot)
                assert self.rows[meta.id] == meta.rows
                self.taken.append(meta.id)

    @rule(count=st.integers(1, SLOTS))
    def learner_releases(self, count: int) -> None:
        for ref in self.held[:count]:
            self.arena.release(ref)
        self.held = self.held[count:]
        self.deliver(ev.LearnerReported(0, 0))

    @rule(fuse=FUSES)
    def learner_announces(self, fuse: int | None = None) -> None:
        """The next version, once the quota of this one is there; else the same again."""
        self.learner_takes()
        here = {id.vector_env for id in self.counted() if id.index == self.version}
        if self.sync and len(here) == self.plan.config.env.vector_envs:
            self.version, self.back = self.version + 1, None
        self.deliver(ev.Announced(Notice(Version(self.learner, self.version), "k", 1, "s", 0), self.back), fuse)

    @rule(rounds=st.integers(0, 3), fuse=FUSES)
    def learner_goes_back(self, rounds: int, fuse: int | None = None) -> None:
        """It died, and FULL is some rounds old: what it held from there on is released, and announced again."""
        if not self.sync:
            return
        self.learner_takes()
        self.learner, self.version = self.learner + 1, max(0, self.version - rounds)
        self.gone_back.append((self.learner << 16, self.version))
        self.back = tuple(
            sum(self.rows[id] for id in self.counted() if id.vector_env == v)
            for v in range(self.plan.config.env.vector_envs)
        )
        self.learner_releases(SLOTS)
        self.learner_announces(fuse)

    def counted(self) -> list[SegmentId]:
        """What was taken and not given up by going back."""
        return [i for i in self.taken if all(i.incarnation >= inc or i.index < n for inc, n in self.gone_back)]

    # what always holds
    @invariant()
    def no_slot_is_anyones_twice(self) -> None:
        if not hasattr(self, "state"):
            return
        snapshots = [self.state.snapshot(i) for i in range(WORKERS)]
        leases = [ref for snapshot in snapshots if snapshot for ref in snapshot.leases]
        slots = [ref.slot for ref in leases]
        assert len(slots) == len(set(slots))
        assert not set(slots) & {ref.slot for ref in self.held}
        # a process that lives may write into what it was given: nobody else may have it
        for i, worker in enumerate(self.workers):
            for other in snapshots[:i] + snapshots[i + 1 :]:
                mine = {r for r in worker.leases if worker.alive and r not in worker.sealed}
                assert not mine & set(other.leases if other else ())

    @invariant()
    def each_segment_is_accepted_once_and_in_order(self) -> None:
        if not hasattr(self, "state"):
            return
        self.learner_takes()
        assert len(self.taken) == len(set(self.taken))
        last: dict[int, SegmentId] = {}
        for id in self.taken:
            before = last.get(id.vector_env)
            fresh = before is None or id.incarnation > before.incarnation
            due = self.begins[id.vector_env, id.incarnation] if fresh else before.index + 1  # type: ignore[union-attr]
            assert id.index == due, (id, before)
            last[id.vector_env] = id

    @rule(i=st.integers(0, 1), pick=st.integers(0, 7), rows=st.integers(1, ROWS), fuse=FUSES)
    def works(self, i: int, pick: int, rows: int, fuse: int | None) -> None:
        """A segment from lease to the learner, as on a good day."""
        self.says(i)
        self.seals(i, pick, rows)
        self.delivers(i, keep=bool(pick & 1), fuse=fuse)

    @rule(i=st.integers(0, 1), pick=st.integers(0, 7), rows=st.integers(1, ROWS), fuse=FUSES)
    def dies_in_a_segment(self, i: int, pick: int, rows: int, fuse: int | None) -> None:
        """With one sealed that no process has received, where a lease is left for it."""
        self.agent_reports()
        self.says(i)
        self.seals(i, pick, rows)
        self.steps(i, pick, rows)
        self.dies(i)
        self.agent_reports(fuse)

    @rule()
    def goes_well(self) -> None:
        self.quiet(1)

    def quiet(self, rounds: int = 6) -> None:
        """Everything that is under way arrives."""
        self.held_here = (0, 1)
        for _ in range(rounds):
            for i, worker in enumerate(self.workers):
                if not worker.alive:
                    self.respawns(i)
            self.agent_reports()
            self.learner_announces()
            for i in range(WORKERS):
                self.says(i)
                self.resends(i)
                self.delivers(i)
                self.says(i)
            self.learner_answers()
            self.learner_releases(SLOTS)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        self.quiet()
        ledger = self.arena.ledger()
        open_rows = sum(sum(w.open_rows.values()) for w in self.workers)
        assert ledger.balanced, ledger
        assert ledger.in_flight == 0
        counted = sum(self.rows[id] for id in self.counted())
        assert ledger.stored == counted
        assert ledger.dropped["rolled_back"] == sum(self.rows[id] for id in self.taken) - counted
        assert ledger.dropped["unsealed"] == self.unsealed
        assert ledger.produced == sum(self.rows.values()) + self.unsealed, (ledger, open_rows)
        self._no_slot_is_lost()
        self.arena.close()

    def _no_slot_is_lost(self) -> None:
        """Free slots go round: after enough segments each has been leased."""
        self.leased = set()
        for _ in range(3 * SLOTS):
            for i in range(WORKERS):
                for pick in range(3):
                    self.seals(i, pick)
                self.delivers(i)
            self.learner_announces()
            self.learner_releases(SLOTS)
            for i in range(WORKERS):
                self.says(i)
            if len(self.leased) == SLOTS:
                break
        assert self.leased == set(range(SLOTS)), "slots lost"


def test_a_slot_accepted_and_released_is_not_leased_to_its_worker_any_more() -> None:
    """Its worker has not received that, and names it to the next broker."""
    machine = BusMachine()
    machine.begin(mode="sync", vector_envs=2)
    machine.works(fuse=None, i=0, pick=0, rows=1)
    machine.learner_goes_back(rounds=0)
    machine.restart_broker()
    machine.teardown()


BusMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBus = BusMachine.TestCase
