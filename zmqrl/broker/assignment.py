"""Who steps which vector env: handed over, withdrawn, claimed from the broker before, reopened after a rollback.

A vector env has one holder at most. It goes to another only once its holder has stopped it, or is dead; what the
holder had sealed is accepted before (`zmqrl.broker.acceptance`), so the stream records say where the next one begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from zmqrl.broker import events as ev
from zmqrl.broker.events import RESUMED_SHIFT, Handover, HandoverRequest, StreamAssignment
from zmqrl.broker.leases import DueSegments
from zmqrl.broker.ledger import Rollback, StreamLedger
from zmqrl.broker.owners import Owners, SpeedMoves
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.plan import RunPlan
from zmqrl.shared_memory.stream_table import NO_HOLDER
from zmqrl.types import Version


class Assignment:
    """Part of the broker's state: writes handovers, closings and rollbacks into the stream records."""

    def __init__(self, plan: RunPlan, ledger: StreamLedger, workers: Workers) -> None:
        self._ledger, self._workers = ledger, workers
        self._sync, self._resume = plan.config.mode.deterministic, plan.resume
        self._ahead = plan.config.mode.rounds_ahead
        self._vector_envs = plan.config.env.vector_envs if self._sync else plan.streams
        replays = plan.config.env.recovery != "restart_episode"
        self._owners = Owners(self._sync, self._vector_envs, workers, movable=replays)
        self._speed_moves = SpeedMoves(self._owners, ledger)
        self.due = DueSegments(plan, ledger, workers)
        """Which segments may be stepped now. To be read."""
        self._min_workers = plan.config.min_workers
        self._first_hosts = () if replays or not self._sync else [host for host, n in plan.workers.items() if n]
        """Hosts that the first assignment waits for: their workers would get nothing later, where nothing moves."""
        self._first_report_at: float | None = None
        self._start_s = plan.config.limits.start_s
        self._begun = any(record.incarnation >= 0 for record in ledger.records)
        self.holders: dict[int, int] = {}
        """Vector env to the worker that has it, or is leaving it. To be read."""
        self._awaited: dict[int, tuple[int, int]] = {}
        """Vector envs that are not moved yet, with who (index, spawn) stepped them under the broker before this one."""
        self._requested: dict[int, HandoverRequest] = {}
        self._rollback = Rollback()
        self._now = 0.0
        """Seconds, of the newest report."""
        self._changed = True

    @property
    def requests(self) -> list[HandoverRequest]:
        """Handover requests that the learner has not answered."""
        return list(self._requested.values())

    def snapshot(self, process: WorkerProcess, stop: bool) -> ev.AssignmentSnapshot:
        """What the process is to know: its leases, what it is to step, how far that is accepted."""
        records = self._ledger.records
        named = process.reported | process.assigned.keys() | process.leaving
        acked = {v: (records[v].incarnation, records[v].next_index) for v in named}
        assignments = None if process.followed_serial == process.serial else tuple(process.assigned.values())
        left = not process.assigned and not process.leaving and self._workers.has_left(process.index)
        leases = tuple(process.leases.values())
        return ev.AssignmentSnapshot(process.spawn, leases, acked, assignments, process.serial, left or stop)

    def is_unbegun(self, vector_env: int, incarnation: int) -> bool:
        """Whether its holder may still need the states with which it was handed over."""
        holder = self._workers.process(self.holders.get(vector_env))
        return holder is not None and holder.unbegun(vector_env, incarnation) is not None

    # processes come, report and go

    def claim(self, process: WorkerProcess, streams: Mapping[int, int], stopped: Collection[int] = ()) -> None:
        """A process that is new to this broker continues with what it steps (vector env to incarnation), if it can.

        It cannot continue with a stopped one: it is leaving it, as under the previous broker.
        """
        self._changed = True
        for vector_env, incarnation in streams.items():
            if vector_env < len(self._ledger.records) and vector_env not in self.holders:
                record = self._ledger.records[vector_env]
                if record.incarnation != incarnation or incarnation == record.closed_incarnation:
                    continue
                if vector_env in stopped:
                    process.leaving.add(vector_env)
                    self.holders[vector_env] = process.index
                else:
                    self._assign(process, StreamAssignment(vector_env, incarnation, record.next_index, None))
                    self._owners.keep(vector_env, process.index)
                self._awaited.pop(vector_env, None)

    def receive(self, process: WorkerProcess, report: ev.WorkerReported) -> bool:
        """Which assignments a process follows, and what it has. True: accept all it sealed, then `release_stopped`."""
        self._now = max(self._now, report.at)
        if self._first_report_at is None:
            self._first_report_at = report.at
        self._owners.times.report(process.index, process.spawn, report.segments, report.busy_s, report.at)
        process.followed_serial = report.serial
        process.reported = frozenset(v for v in report.streams if v < len(self._ledger.records))
        for vector_env, assignment in process.assigned.items():
            if assignment.states is not None and report.streams.get(vector_env) == assignment.incarnation:
                # it steps it: the record has served
                process.assigned[vector_env] = structs.replace(assignment, states=None)
        for vector_env, index, rows in report.open_rows if report.remote else ():
            held = vector_env in process.reported and self.holders.get(vector_env) == process.index
            if held and report.streams[vector_env] == self._ledger.records[vector_env].incarnation:
                self._ledger.report_open(vector_env, index, rows)
        if report.serial != process.serial:
            return False
        for vector_env in report.stopped:  # another broker gave it back, and could not know that it was withdrawn
            self._withdraw(process, vector_env)
        return bool(process.leaving)

    def release_stopped(self, process: WorkerProcess) -> None:
        """What was withdrawn from the process, and it names no more, is free."""
        for vector_env in process.leaving - process.reported:
            process.leaving.discard(vector_env)
            del self.holders[vector_env]
            self._ledger.close_stream(vector_env)
            self._changed = True

    def remove(self, process: WorkerProcess) -> None:
        """Remove a dead process; what it sealed is accepted, and what it did not seal is counted."""
        for vector_env in (*process.assigned, *process.leaving):
            self._ledger.close_stream(vector_env)
            del self.holders[vector_env]
        self._changed = True

    def review(self) -> None:
        """Members changed: `place` has to look again."""
        self._changed = True

    # after another broker

    def await_claims(self) -> None:
        """Until `end_claims` those who step vector envs may claim them; the others stay unclaimed."""
        self._workers.await_hosts()
        held = ((v, r) for v, r in enumerate(self._ledger.records) if r.holder != NO_HOLDER)
        self._awaited = {v: record.holder for v, record in held if record.closed_incarnation != record.incarnation}

    def end_claims_of_dead(self, workers: Iterable[int], alive: Mapping[int, int]) -> None:
        """An agent has reported which of its `workers` are alive; claims of other processes of it do not count."""
        theirs = set(workers)
        for vector_env, (index, spawn) in list(self._awaited.items()):
            if index in theirs and alive.get(index) != spawn:
                del self._awaited[vector_env]
                self._changed = True

    def end_claims(self) -> None:
        """A process that has not claimed what it stepped is gone."""
        self._changed = self._workers.end_wait() or self._changed or bool(self._awaited)
        self._awaited.clear()

    # the learner

    def announce(self, version: Version, back: Sequence[int] | None) -> list[ev.Action]:
        """The learner's new version; `back`: the rows of each vector env before it, when it rolled back to it."""
        records, actions = self._ledger.records, list[ev.Action]()
        most = version.n + 1 + self._ahead
        if self._sync and back is not None:
            actions += self._roll_back(Rollback(version, back))
        elif self._sync and any(r.incarnation >= 0 and r.next_index > most for r in records):
            cause = f"the learner rolled back to version {version}, older than the stored rows: resume the run"
            actions.append(ev.Fail(cause))
        self._changed = self._changed or self.due.version is None
        self.due.version = version
        return actions

    def answer(self, handover: Handover) -> list[ev.Action]:
        """The learner reports where a vector env continues."""
        request = self._requested.get(handover.vector_env)
        if request is None or request.incarnation != handover.incarnation:
            return []
        del self._requested[handover.vector_env]
        self._changed = True
        owner = self._workers.process(self._owners.owner(handover.vector_env))  # whoever it is by now
        if owner is None:
            return []
        assignment = StreamAssignment(handover.vector_env, handover.incarnation, handover.next_index, handover.states)
        return [self._hand_over(owner, assignment)]

    # moves

    def place(self) -> list[ev.Action]:
        """Every vector env to its owner, or on its way to it, once the first assignment may be made."""
        relieved = self._speed_moves.review(self._now, self._begun and not self._requested and not self._awaited)
        if not self._changed and relieved is None:
            return []
        self._begun = self._begun or self._may_begin()
        if not self._begun:
            return []
        self._changed = False
        self._owners.balance(self.holders.keys() | self._awaited.keys())
        if relieved is not None:
            moving = [v for v, index in self.holders.items() if self._owners.owner(v) != index]
            self._speed_moves.start(moving, self._now)
        moves = [action for vector_env in range(self._vector_envs) for action in self._place(vector_env)]
        return [*(relieved or ()), *moves]

    def _may_begin(self) -> bool:
        """Whether `min_workers` are there, and each host that is waited for has reported, for `limits.start_s` at most.

        A worker of such a host is a member before it is ready: its vector envs wait for it.
        """
        if len(self._workers.processes()) < self._min_workers:
            return False
        is_late = self._first_report_at is not None and self._now - self._first_report_at >= self._start_s
        return is_late or all(map(self._workers.is_settled, self._first_hosts))

    def _place(self, vector_env: int) -> list[ev.Action]:
        index = self._owners.owner(vector_env)
        owner, holder = self._workers.process(index), self._workers.process(self.holders.get(vector_env))
        is_behind = self._rollback.is_behind(self._ledger, vector_env)
        if holder is not None and (holder.index != index or is_behind):
            if not is_behind and self.due.strands_lease(holder, vector_env):
                self._changed = True  # it moves once this segment of it is stored
                return []
            return [ev.Reply(holder.index)] if self._withdraw(holder, vector_env) else []
        if holder is None and owner is not None and vector_env not in self._awaited:
            return self._begin(owner, vector_env)
        return []

    def _withdraw(self, process: WorkerProcess, vector_env: int) -> bool:
        """Move it: first its holder reports that it no longer steps it, and all its segments are accepted."""
        if vector_env not in process.assigned:
            return False
        del process.assigned[vector_env]
        process.leaving.add(vector_env)
        process.serial += 1
        return True

    def _begin(self, owner: WorkerProcess, vector_env: int) -> list[ev.Action]:
        """Begin a vector env without a holder: hand it over, or request its start state from the learner."""
        if vector_env in self._requested or (self._resume and self.due.version is None):
            return []
        record = self._ledger.records[vector_env]
        if record.incarnation < 0 and not self._resume:
            return [self._hand_over(owner, StreamAssignment(vector_env, self._rollback.incarnation, 0, None))]
        if record.incarnation >= 0:
            self._ledger.close_stream(vector_env)
        failure = self._rollback.reopen(self._ledger, vector_env)
        if failure is not None:
            return [failure]
        first = self.due.version.incarnation << RESUMED_SHIFT if self._resume and self.due.version else 0
        incarnation = max(record.incarnation + 1, first)
        if not self._sync:
            return [self._hand_over(owner, StreamAssignment(vector_env, incarnation, 0, None))]
        self._requested[vector_env] = HandoverRequest(vector_env, incarnation, record.next_index)
        return [ev.RequestHandovers()]

    def _hand_over(self, owner: WorkerProcess, assignment: StreamAssignment) -> ev.Reply:
        holder = owner.index, owner.spawn
        self._ledger.hand_over(assignment.vector_env, assignment.incarnation, assignment.next_index, holder)
        self._speed_moves.note_handover(assignment)
        self._assign(owner, assignment)
        return ev.Reply(owner.index)

    def _assign(self, process: WorkerProcess, assignment: StreamAssignment) -> None:
        process.assigned[assignment.vector_env] = assignment
        process.serial += 1
        self.holders[assignment.vector_env] = process.index

    def _roll_back(self, rollback: Rollback) -> list[ev.Action]:
        """Positions from there on are open again: every vector env is withdrawn, then handed over again."""
        if len(rollback.rows) != self._vector_envs:
            return [ev.Refuse("value")]
        self._rollback, self._changed = rollback, True
        for vector_env in range(self._vector_envs):
            if rollback.is_behind(self._ledger, vector_env):
                self._requested.pop(vector_env, None)
        return []
