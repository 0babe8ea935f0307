"""A whole bus in one thread: the real broker state, worker ends, learner end and arena; what dies, dies at any store.

Messages are lost, come late, in any order between two senders, or twice. The truth is kept outside: what was stepped,
by whom, and what each learner was given.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.broker.simulated_ends import Killed, Sink, Source, Words
from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import Assignments, Handover, HandoverRequest
from zmqrl.broker.state import BrokerState
from zmqrl.bus_ends.base import OpenSegment
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.shared_memory.arena import Arena, LearnerRecord
from zmqrl.types import MODES, ModeName, Notice, SegmentId, Version

NEAR, FAR = "local", "far"
QUIET_TURNS = 2500
TURN_S = 3.0
SPEEDS_LAST = 200
"""Turns for which a worker is slow: its vector envs move to others in the middle of all that dies."""
MORE_DEADLY = {"broker": 1.0, "worker": 4.0, "learner": 2.0}
MOST_STORES = {"broker": 40, "worker": 20, "learner": 12}
"""Of one turn, about."""


class Worker:
    def __init__(self, bus: Bus, index: int, spawn: int, host: str) -> None:
        self.bus, self.index, self.spawn, self.host = bus, index, spawn, host
        self.sink = Sink(bus.plan, bus.arena, index, spawn, host != NEAR)
        self.alive = True
        self.next: dict[int, tuple[int, int]] = {}
        self.now: tuple[int, OpenSegment, int] | None = None
        """Vector env, segment and rows of what it steps: assignments are taken in between two segments."""

    def turn(self, dice: random.Random) -> None:
        if self.now is not None:
            self._step(dice)
            return
        if dice.random() < 0.3:
            self.sink.report(dice.random() < 0.5, *self.bus.speed(self.index))
        self.sink.receive()
        assignments = self.sink.poll()
        if assignments.stop:
            self.bus.ends(self)
            return
        self._apply_assignments(assignments)
        due = [v for v, (_, index) in self.next.items() if not self.bus.sync or index in self.bus.due]
        vector_env = dice.choice(due) if due else -1
        segment = self.sink.open(vector_env) if due else None
        if segment is not None:
            for column in segment.columns.values():
                column[...] = self.bus.code(SegmentId(vector_env, *self.next[vector_env]), column.dtype)
            self.now = vector_env, segment, 0

    def _apply_assignments(self, assignments: Assignments) -> None:
        listed = {order.vector_env: order for order in assignments.streams}
        self.next = {v: at for v, at in self.next.items() if v in listed and at[0] == listed[v].incarnation}
        for vector_env, order in listed.items():
            self.next.setdefault(vector_env, (order.incarnation, order.next_index))

    def _step(self, dice: random.Random) -> None:
        assert self.now is not None
        vector_env, segment, rows = self.now
        id = SegmentId(vector_env, *self.next[vector_env])
        whole = self.bus.rows_of(id)
        if rows < whole:
            rows += dice.randint(1, whole - rows)
            self.now = vector_env, segment, rows
            self.sink.progress(vector_env, rows)
            self.bus.stepped[id] = rows
            return
        self.now = None
        self.bus.stepped.setdefault(id, 0)
        self.next[vector_env] = (id.incarnation, id.index + 1)
        self.sink.seal(segment, id, Version(0, self.bus.published), rows)


@dataclass(frozen=True)
class Full:
    n: int
    rows: tuple[int, ...]


class Learner:
    """The loop of sync and pipelined, and a consumer for async."""

    def __init__(self, bus: Bus, incarnation: int) -> None:
        self.bus, self.incarnation = bus, incarnation
        self.source = Source(bus.arena)
        full = bus.newest_full()
        self.n, self.rows, self.oldest = full.n, list(full.rows), 0
        self.round: dict[int, TakenSegment] = {}
        self.early: list[TakenSegment] = []
        self.announced: Notice | None = None
        self.back: list[int] | None = None
        if bus.sync and bus.arena.read_learner() is not None:
            again = self.source.reattach(Version(incarnation, self.n), (), {})
            self.oldest = again.oldest_incarnation
            self.back = list(self.rows) if again.rolled_back else None
        if bus.sync:
            bus.kept = dict(bus.kept_by_full.get(full, {}))
        self._publish()

    def _publish(self) -> None:
        version = Version(self.incarnation, self.n)
        self.bus.arena.write_learner(LearnerRecord(version, 0, 0, self.oldest))
        if self.announced is not None:
            self.back = None
        self.announced = Notice(version, "k", 1, "s", sum(self.rows))
        self.bus.published = self.n

    def turn(self, dice: random.Random) -> None:
        for taken in self.source.take():
            self._take(taken)
        if self.bus.sync and len(self.round) == self.bus.vector_envs:
            self._train(dice)

    def _take(self, taken: TakenSegment) -> None:
        id = taken.meta.id
        columns = {name: column[taken.ref.slot] for name, column in self.source.columns.items()}
        assert all((column == self.bus.code(id, column.dtype)).all() for column in columns.values()), f"torn: {id}"
        assert self.bus.stepped[id] == taken.meta.rows
        if not self.bus.sync:
            self.bus.given[id] += 1
            self.source.release([taken.ref])
        elif id.index == self.n and id.incarnation >= self.oldest:
            assert id.vector_env not in self.round, f"twice: {id}"
            self.round[id.vector_env] = taken
        elif 0 < id.index - self.n <= self.bus.mode.rounds_ahead and id.incarnation >= self.oldest:
            self.early.append(taken)
        else:
            self.source.release([taken.ref])

    def _train(self, dice: random.Random) -> None:
        segments, self.round = list(self.round.values()), {}
        for taken in segments:
            self.rows[taken.meta.id.vector_env] += taken.meta.rows
            self.bus.kept[taken.meta.id.vector_env, self.n] = taken.meta.id
        self.n += 1
        if dice.random() < 0.4:
            full = Full(self.n, tuple(self.rows))
            self.bus.fulls.append(full)
            self.bus.kept_by_full[full] = dict(self.bus.kept)
        self.source.release([taken.ref for taken in segments])
        self._publish()
        early, self.early = self.early, []
        for taken in early:
            self._take(taken)

    def answers(self, request: HandoverRequest) -> Handover | None:
        """Once it has taken all that is below the request."""
        reached = self.n + (request.vector_env in self.round)
        return Handover(request.vector_env, request.incarnation, reached, ()) if reached >= request.next_index else None


class Bus:
    """`turn` lets somebody do something; `quiet` lets all arrive; `end` ends the run."""

    def __init__(self, seed: int, mode: ModeName, far: bool) -> None:
        self.dice, self.mode, self.vector_envs = random.Random(seed), MODES[mode], 3
        self.sync = self.mode.deterministic
        self.plan = bus_plan(mode, workers=3, vector_envs=self.vector_envs, slots=12)
        self.arena = Arena.private(self.plan)
        self.words = Words(self.arena.words)
        vars(self.arena)["words"] = vars(self.arena.streams)["_words"] = self.words
        self.hosts = {0: NEAR, 1: FAR if far else NEAR, 2: FAR if far else NEAR}
        self.stepped: dict[SegmentId, int] = {}
        self.given: Counter[SegmentId] = Counter()
        self.kept: dict[tuple[int, int], SegmentId] = {}
        """sync: vector env and version to the segment that the present lineage was trained on."""
        self.fulls, self.published, self.kills = [Full(0, (0,) * self.vector_envs)], 0, Counter[str]()
        self.kept_by_full: dict[Full, dict[tuple[int, int], SegmentId]] = {}
        self.held, self.turns = set(self.hosts), 0
        self.workers = {index: Worker(self, index, 0, host) for index, host in self.hosts.items()}
        self.state = self._broker()
        self.learner = Learner(self, 0)

    @property
    def due(self) -> range:
        """sync, pipelined: rounds that may be stepped with what is published."""
        return range(self.published, self.published + 1 + self.mode.rounds_ahead)

    def speed(self, index: int) -> tuple[float, float]:
        """Seconds per segment of a worker, which change, and the time."""
        return 1.0 + 9.0 * ((index + self.turns // SPEEDS_LAST) % 3 == 0), self.turns * TURN_S

    def rows_of(self, id: SegmentId) -> int:
        """Valid rows of the segment; in sync whoever steps a position comes to the same."""
        return (id.vector_env * 5 + id.index * 3 + (0 if self.sync else id.incarnation)) % (ROWS + 1)

    def code(self, id: SegmentId, dtype: np.dtype[Any]) -> Any:
        return np.array((id.vector_env * 31 + id.incarnation * 7 + id.index) % 97).astype(dtype)

    def _broker(self) -> BrokerState:
        return BrokerState(self.plan, self.arena, FAR in self.hosts.values())

    def newest_full(self) -> Full:
        """What a learner finds: the newest cannot be read for a while, now and then."""
        away = len(self.fulls) > 1 and self.dice.random() < 0.2
        return self.fulls[-2] if away else self.fulls[-1]

    # somebody runs, and may die

    def run(self, role: str, what: Callable[[], None], deadly: float) -> bool:
        """False when it died."""
        dies = self.dice.random() < deadly * MORE_DEADLY[role]
        self.words.fuse = self.dice.randrange(MOST_STORES[role]) if dies else None
        try:
            what()
        except Killed:
            self.kills[role] += 1
            return False
        finally:
            self.words.fuse = None
        return True

    def deliver(self, event: ev.Event, deadly: float = 0.0) -> None:
        def decide() -> None:
            actions = self.state.handle(event)
            failed = [action.cause for action in actions if isinstance(action, ev.Fail)]
            assert not failed, failed
            for action in actions:
                if isinstance(action, ev.Reply):
                    self._reply(action.index, deadly)

        if not self.run("broker", decide, deadly):
            self.broker_dies()

    def _reply(self, index: int, deadly: float) -> None:
        snapshot = self.state.snapshot(index)
        if snapshot is not None and (not deadly or self.dice.random() < 0.8):
            self.workers[index].sink.inbox.append((self.state.incarnation, snapshot))

    def broker_dies(self) -> None:
        """What was on its way is lost with the connections, or comes late."""
        for worker in self.workers.values():
            for queue in (worker.sink.control, worker.sink.data):
                kept = [event for event in queue if self.dice.random() < 0.5]
                queue.clear()
                queue.extend(kept)
        while not self.run("broker", lambda: setattr(self, "state", self._broker()), 0.2):
            pass

    def worker_turns(self, worker: Worker, deadly: float) -> None:
        if worker.alive and not self.run("worker", lambda: worker.turn(self.dice), deadly * (worker.host == NEAR)):
            worker.alive = False
        elif worker.host != NEAR and worker.alive and self.dice.random() < deadly / 8:
            worker.alive = False
            self.kills["far worker"] += 1

    def ends(self, worker: Worker) -> None:
        """By itself: it writes no more."""
        worker.sink.report(False, *self.speed(worker.index))
        worker.sink.control.append(ev.WorkerExited(worker.index, worker.spawn))
        worker.alive = False

    def delivers(self, worker: Worker, deadly: float) -> None:
        queue = self.dice.choice((worker.sink.control, worker.sink.data))
        for _ in range(self.dice.randint(1, 4)):
            if not queue:  # also when the broker died of the one before
                return
            event = queue.popleft()
            if deadly and self.dice.random() < 0.1:
                queue.append(event)  # once more, later
            if not deadly or self.dice.random() < 0.9:
                self.deliver(event, deadly)

    def reaps(self, host: str, deadly: float) -> None:
        """The agent's absolute word; then it starts successors."""
        theirs = [worker for worker in self.workers.values() if worker.host == host]
        alive = {worker.index: worker.spawn for worker in theirs if worker.alive}
        held = tuple(worker.index for worker in theirs if worker.index in self.held)
        if not deadly or self.dice.random() < 0.8:
            self.deliver(ev.HostReported(alive, (), host, held), deadly)
        for worker in theirs:
            if not worker.alive and worker.index in self.held and self.dice.random() < 0.5:
                self.workers[worker.index] = Worker(self, worker.index, worker.spawn + 1, host)

    def silences(self, worker: Worker, deadly: float) -> None:
        """The broker takes a worker of another host for lost; it may come back."""
        if worker.host != NEAR:
            self.deliver(ev.WorkerSilent(worker.index, worker.spawn), deadly)

    def learns(self, deadly: float) -> None:
        if not self.run("learner", lambda: self.learner.turn(self.dice), deadly):
            self.learner_dies()
        if self.learner.announced is not None:
            self.deliver(ev.Announced(self.learner.announced, self.learner.back), deadly)
        self.deliver(ev.LearnerReported(0, 0), deadly)
        for request in self.state.assignment.requests:
            answer = self.learner.answers(request)
            if answer is not None:
                self.deliver(ev.HandoverAnswered(answer), deadly)

    def learner_dies(self) -> None:
        incarnation = self.learner.incarnation

        def succeed() -> None:
            self.learner = Learner(self, incarnation)

        while True:
            incarnation += 1
            if self.run("learner", succeed, 0.2):
                return

    def turn(self, deadly: float) -> None:
        self.turns += 1
        worker = self.workers[self.dice.choice(list(self.workers))]
        roll = self.dice.random()
        if roll < 0.5:
            self.worker_turns(worker, deadly)
        elif roll < 0.75:
            self.delivers(worker, deadly)
        elif roll < 0.87:
            self.learns(deadly)
        elif roll < 0.95:
            self.reaps(worker.host, deadly)
        elif roll < 0.97:
            self.deliver(ev.ClaimsExpired(), deadly)
        elif deadly and roll < 0.975:
            self.silences(worker, deadly)
        elif deadly and roll < 0.98:
            self.held ^= {worker.index}
        elif deadly and roll < 0.983:
            self.kills["broker"] += 1
            self.broker_dies()
        elif deadly and roll < 0.985:
            self.kills["learner"] += 1
            self.learner_dies()

    # what holds

    def quiet(self) -> None:
        """Nobody dies any more, and all arrives: the run gets on."""
        self.held, before = set(self.hosts), self.arena.ledger().produced
        for _ in range(QUIET_TURNS):
            self.turn(0.0)
        assert self.arena.ledger().produced > before + 10 * ROWS, "it does not get on"

    def end(self) -> None:
        """The workers end where they are, then the broker."""
        for worker in self.workers.values():
            if worker.alive:
                self.ends(worker)
            while worker.sink.control or worker.sink.data:
                self.delivers(worker, 0.0)
        self.learner.turn(self.dice)
        self.state.accept_all_sealed()
        self.learner.turn(self.dice)

    def check_always(self) -> None:
        """At any moment: the ledger knows of no loss and of no surplus."""
        ledger = self.arena.ledger()
        assert (ledger.dropped["unknown"], ledger.overbooked) == (0, 0), ledger

    def check_end(self) -> None:
        ledger = self.arena.ledger()
        assert ledger.balanced and ledger.in_flight == 0, ledger
        stepped, near = sum(self.stepped.values()), self._near_rows()
        assert near <= ledger.produced <= stepped, (near, ledger, stepped)
        if self.sync:
            due = {(v, n) for v in range(self.vector_envs) for n in range(self.learner.n)}
            assert due == self.kept.keys(), "a gap"
            rows = sum(self.stepped[id] for id in self.kept.values())
            taken = [*self.learner.round.values(), *self.learner.early]
            assert ledger.stored == rows + sum(segment.meta.rows for segment in taken)
        else:
            assert ledger.stored == sum(self.stepped[id] for id in self.given)
            for id in self.given:
                assert not id.index or id._replace(index=id.index - 1) in self.given, f"a gap before {id}"

    def _near_rows(self) -> int:
        if FAR not in self.hosts.values():
            return sum(self.stepped.values())
        return sum(self.stepped[id] for id in self.kept.values())
