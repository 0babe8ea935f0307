"""The broker's decisions: `handle(event) -> [action]`. The arena is its memory, so a new broker continues from there.

`BrokerState` owns the record of each worker (`workers`). What the processes step is `assignment`, what they write into
is `acceptance`; both work on these records and on the stream records (`ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zmqrl.broker import events as ev
from zmqrl.broker.acceptance import Acceptance
from zmqrl.broker.assignment import Assignment
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import WorkerProcess, Workers
from zmqrl.config.plan import MOST_WORKERS, RunPlan
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice


class BrokerState:
    """Streams, leases and workers. One thread; no I/O but the arena."""

    def __init__(self, plan: RunPlan, arena: Arena, other_hosts: bool = False, paused: bool = False) -> None:
        """`other_hosts`: workers of other hosts participate. After another broker they may claim what they step.

        Until `ClaimsExpired` then, no vector env is moved that a process may claim. `paused`: as of `Paused`.
        """
        env = plan.config.env
        self._ledger = StreamLedger(arena, env.num_envs * env.segment_steps)
        self.incarnation = arena.begin_broker()
        first = self.incarnation == 1
        self.workers = Workers(MOST_WORKERS)
        self.assignment = Assignment(plan, self._ledger, self.workers)
        self._acceptance = Acceptance(plan, arena, self._ledger, self.assignment, self.workers, first)
        self.notice: Notice | None = None
        self.awaits_claims = other_hosts and not first
        """Whether `ClaimsExpired` has to follow."""
        if self.awaits_claims:
            self.assignment.await_claims()
        self._learner_host = plan.config.learner.host
        self._unreported: dict[int, int] | None = None
        """Workers (index to spawn) of the broker before that live and have reported nothing to this one."""
        self._ending = False
        self._paused = paused

    def handle(self, event: ev.Event) -> list[ev.Action]:
        """Take one event in. What processes known to be dead report changes nothing."""
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[ev.Event]) -> list[ev.Action]:
        """Take a round's events in, in order; streams and leases are given out once, at its end."""
        actions: list[ev.Action] = []
        for event in events:
            actions += self._handle(event)
        if self._acceptance.is_open:
            actions += self.assignment.place()
            if not self._paused:
                actions += self._acceptance.lease_out()
        actions[:0] = self._ledger.pop_dropped()  # the log has them also when one of the others ends the broker
        return actions

    def snapshot(self, index: int) -> ev.AssignmentSnapshot | None:
        """What worker `index` is to know; None when no process of it is there."""
        process = self.workers.process(index)
        return None if process is None else self.assignment.snapshot(process, self._ending and process.remote)

    def has_work(self, index: int) -> bool:
        """Whether a worker could step now: it has a lease and, in sync, a vector env whose turn it is.

        Workers with heartbeats whose leases are not reported yet: a new broker grants them no lease before.
        """
        process = self.workers.process(index)
        return process is None or (bool(process.leases) and self.assignment.due.of(process) > 0)

    def end_remote(self) -> list[int]:
        """The run ends: with their next assignments workers of other hosts stop. Returns these workers."""
        self._ending = True
        return [process.index for process in self.workers.processes() if process.remote]

    def accept_all_sealed(self) -> list[ev.Dropped]:
        """The broker ends: accept whatever is sealed, in order, and count undelivered rows of other hosts."""
        for process in self.workers.processes():
            if process.remote:
                self._remove(process)
        self._acceptance.accept_all_sealed()
        return self._ledger.pop_dropped()

    def _handle(self, event: ev.Event) -> Sequence[ev.Action]:
        match event:
            case ev.Sealed():
                process = self.workers.spawned(event.index, event.spawn)
                return () if process is None else self._acceptance.take_sealed(process, event.refs)
            case ev.Delivered():
                process = self.workers.spawned(event.index, event.spawn)
                remote = process is not None and process.remote
                return self._acceptance.take_delivered(process, event) if process is not None and remote else ()
            case ev.WorkerReported():
                return self._worker_reported(event)
            case ev.LearnerReported():
                self._acceptance.report_progress(event.env_steps, event.updates)
            case ev.Announced():
                return self._version_announced(event)
            case ev.HostReported():
                return self._host_reported(event)
            case ev.HostRemoved():
                return self._host_reported(ev.HostReported({}, event.workers, event.host))
            case ev.HostAbsent():
                self.workers.settle(event.host)
            case ev.HandoverAnswered():
                return self.assignment.answer(event.handover)
            case ev.Paused():
                self._paused = event.paused
            case ev.ClaimsExpired():
                self.assignment.end_claims()
            case ev.WorkerExited():  # it writes no more
                process = self.workers.spawned(event.index, event.spawn)
                return () if process is None else self._remove(process)
            case ev.WorkerSilent():  # one with the arena may wake up and write: no lease of it expires
                process = self.workers.spawned(event.index, event.spawn)
                return () if process is None or not process.remote else self._remove(process)
        return ()

    # workers

    def _worker_reported(self, report: ev.WorkerReported) -> list[ev.Action]:
        if not self.workers.allows(report.index):
            return [ev.Refuse("worker")]
        if self.workers.has_failed(report.index):
            return []  # of a host that was cut off for too long: its agent is notified, and ends it
        process = self.workers.process(report.index)
        if process is not None and _is_stale(report, process):
            return []
        if not self._acceptance.recovered and report.broker is not None and report.broker != self.incarnation:
            return [ev.Reply(report.index)]
        actions: list[ev.Action] = []
        if process is not None and process.spawn < report.spawn:  # an agent starts a successor only after it reaped
            actions += self._remove(process)
            process = None
        if process is None:
            process = self._add(report)
        if self.assignment.receive(process, report):
            actions += self._acceptance.take_all_of(process)
            self.assignment.release_stopped(process)
        if self._unreported is not None:
            self._unreported.pop(report.index, None)
            actions += self._recover_if_all_reported()
        actions.append(ev.Reply(report.index))
        if self.assignment.requests:
            actions.append(ev.RequestHandovers())
        return actions

    def _add(self, report: ev.WorkerReported) -> WorkerProcess:
        """A process that is new to this broker; one that outlived the broker before continues with what it has."""
        process = self.workers.add(report.index, report.spawn, report.remote)
        self._acceptance.claim(process, report.leases)
        self.assignment.claim(process, report.streams, report.stopped)
        return process

    def _remove(self, process: WorkerProcess) -> list[ev.Action]:
        """Remove a dead process: accept what it sealed, count what it did not, take its slots back."""
        actions = self._acceptance.take_all_of(process, dead=True)
        self.assignment.remove(process)
        self._acceptance.revoke_leases(process)
        self.workers.remove(process)
        return actions

    # hosts

    def _host_reported(self, report: ev.HostReported) -> list[ev.Action]:
        """What is true of the host's workers now: who is not alive is dead and reaped."""
        host, alive, allows = report.host, report.alive, self.workers.allows
        assigned, failed = list(filter(allows, report.workers)), list(filter(allows, report.failed))
        if self.workers.receive(host, assigned, failed, filter(allows, alive), report.acting):
            self.assignment.review()
        own = [index for index in (*assigned, *failed) if self.workers.is_of(index, host)]
        self.assignment.end_claims_of_dead(own, alive)
        actions: list[ev.Action] = []
        for process in self.workers.processes():
            if not self.workers.is_of(process.index, host):
                continue
            is_listed = alive.get(process.index) == process.spawn
            if self.workers.has_failed(process.index) or (process.listed and not is_listed):
                actions += self._remove(process)
            elif is_listed:
                process.listed = True
        self.workers.remove_left(host, alive)
        if not self._acceptance.recovered and host == self._learner_host:
            if self._unreported is None:
                self._unreported = {i: spawn for i, spawn in alive.items() if self.workers.process(i) is None}
            self._unreported = {i: spawn for i, spawn in self._unreported.items() if alive.get(i) == spawn}
            actions += self._recover_if_all_reported()
        return actions

    def _recover_if_all_reported(self) -> list[ev.Action]:
        if self._unreported or self._acceptance.recovered:
            return []
        return self._acceptance.finish_recovery()

    # the learner

    def _version_announced(self, announced: ev.Announced) -> list[ev.Action]:
        notice = announced.notice
        if self.notice is not None and notice.version <= self.notice.version:
            return []
        self._acceptance.begin_at(notice.env_steps)
        actions = self.assignment.announce(notice.version, announced.back)
        self.notice = notice
        return [*actions, ev.Publish(notice)]


def _is_stale(report: ev.WorkerReported, process: WorkerProcess) -> bool:
    """Whether it comes from a process that is older, or that its agent does not list, while `process` is there."""
    return report.spawn < process.spawn or (process.listed and report.spawn != process.spawn)
