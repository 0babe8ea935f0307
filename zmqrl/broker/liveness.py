"""Which processes are lost, stalled or slow, by their heartbeats; which hosts are lost, by their agents' reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zmqrl.broker.workers import Liveliness, Pulse, Workers
from zmqrl.config.sections import LimitsSection
from zmqrl.messages import bus
from zmqrl.types import JudgedRole

SLOW_HEARTBEATS = 20
"""A process that has work and makes no progress for so many heartbeats is slow, until it is stalled."""

JOIN_S = 10.0
"""What a host may take, beyond its lease, from its place on the allow-list to its first report."""

GAP, GAP_HEARTBEATS = 0.5, 2
"""Share of `lost_after_s`, and heartbeats: an agent without a report for the longer of both was cut off, as its workers
may have been. It reports once per heartbeat, so two have passed when one report is missing."""

UNREPORTED = -1
"""The progress of a process that was expected and has sent no heartbeat."""


@dataclass(frozen=True)
class Judgement:
    """The new state of a process."""

    role: JudgedRole
    index: int
    spawn: int
    state: Liveliness


class Liveness:
    """lost: silent for `lost_after_s`; stalled: received, has work, no progress for `stalled_after_s`. Pure."""

    def __init__(self, limits: LimitsSection, workers: Workers, learner_host: str) -> None:
        """`workers`: where it keeps the pulse of each worker."""
        self._lost_after_s, self._stalled_after_s = limits.lost_after_s, limits.stalled_after_s
        self._start_s = max(0.0, limits.start_s - limits.lost_after_s)
        self._slow_after_s = SLOW_HEARTBEATS * limits.heartbeat_s
        self._gap_s = max(GAP * limits.lost_after_s, GAP_HEARTBEATS * limits.heartbeat_s)
        self._workers, self._learner_host = workers, learner_host
        self._learners: dict[int, Pulse] = {}
        self._reports: dict[str, tuple[float, float]] = {}
        """Times by host: since when the reports of its agent have come without a gap, and when the last one came."""

    def receive(self, heartbeat: bus.Heartbeat, now: float) -> None:
        """Take a heartbeat in; one of an earlier spawn is stale."""
        if heartbeat.role == "worker":
            worker = self._workers.of(heartbeat.index)
            worker.pulse = _after(worker.pulse, heartbeat, now)
        else:
            self._learners[heartbeat.index] = _after(self._learners.get(heartbeat.index), heartbeat, now)

    def expect(self, index: int, spawn: int, ready: bool, now: float) -> None:
        """The agent of worker `index` reported its start: its silence counts, also without a first message.

        From when it is `ready` on, at the latest from `limits.start_s` on.
        """
        worker = self._workers.of(index)
        pulse = worker.pulse
        if pulse is None or pulse.spawn < spawn:
            since = now if ready else now + self._start_s
            worker.pulse = Pulse(spawn, UNREPORTED, since, since)
        elif ready and pulse.spawn == spawn and pulse.progress == UNREPORTED:
            pulse.at, pulse.moved_at = min(pulse.at, now), min(pulse.moved_at, now)

    def forget(self, index: int) -> None:
        """The worker ended."""
        worker = self._workers.known(index)
        if worker is not None:
            worker.pulse = None

    def judge(self, has_work: Callable[[int], bool], now: float) -> list[Judgement]:
        """Every process whose state changed since the last call; `now` in monotonic seconds.

        `has_work`: whether a worker could make progress; the learner may always be waiting.
        """
        judged: list[tuple[JudgedRole, int, Pulse, bool]] = []
        judged += [("learner", index, pulse, False) for index, pulse in self._learners.items()]
        judged += [("worker", w.index, w.pulse, has_work(w.index)) for w in self._workers if w.pulse is not None]
        return [
            Judgement(role, index, pulse.spawn, pulse.state)
            for role, index, pulse, can_work in judged
            if self._changes(pulse, can_work, now)
        ]

    def hanging(self, host: str, alive: Mapping[int, int], now: float) -> list[bus.Hanging]:
        """The agent of `host` has reported these workers (index to spawn): the processes that it is to kill.

        A silent worker is among them once its agent has reported for `lost_after_s` without a gap. Behind a
        connection that was cut, all were silent, and their connections return one after the other. A silent learner
        is after `stalled_after_s`: its work may delay its heartbeats, and its death costs more than a worker's.
        """
        since, last = self._reports.get(host, (now, now))
        since = now if now - last >= self._gap_s else since
        self._reports[host] = since, now
        workers = [(w.index, w.pulse) for w in self._workers if w.pulse is not None]
        named = [
            self._hanging("worker", index, pulse, self._lost_after_s, since, now)
            for index, pulse in workers
            if alive.get(index) == pulse.spawn
        ]
        learners = self._learners.items() if host == self._learner_host else ()
        named += [self._hanging("learner", *learner, self._stalled_after_s, since, now) for learner in learners]
        return [hanging for hanging in named if hanging is not None]

    def _hanging(
        self, role: JudgedRole, index: int, pulse: Pulse, silent_s: float, since: float, now: float
    ) -> bus.Hanging | None:
        if now - max(pulse.at, since) >= silent_s:
            return bus.Hanging(role, index, pulse.spawn, "lost")
        return bus.Hanging(role, index, pulse.spawn, "stalled") if pulse.state == "stalled" else None

    def _changes(self, pulse: Pulse, has_work: bool, now: float) -> bool:
        if not has_work:
            pulse.moved_at = max(pulse.moved_at, pulse.at)
        before, pulse.state = pulse.state, self._state(pulse, now)
        return pulse.state != before

    def _state(self, pulse: Pulse, now: float) -> Liveliness:
        if now - pulse.at >= self._lost_after_s:
            return "lost"
        if now - pulse.moved_at >= self._stalled_after_s:
            return "stalled"
        return "slow" if now - pulse.moved_at >= self._slow_after_s else "well"


def _after(pulse: Pulse | None, heartbeat: bus.Heartbeat, now: float) -> Pulse:
    if pulse is None or pulse.spawn < heartbeat.spawn:
        return Pulse(heartbeat.spawn, heartbeat.progress, now, now)
    if pulse.spawn == heartbeat.spawn:
        pulse.at = now
        if pulse.progress != heartbeat.progress or pulse.state == "lost":  # nothing is known of a time of silence
            pulse.progress, pulse.moved_at = heartbeat.progress, now
    return pulse


class Hosts:
    """Receives the reports of each host agent; the learner's host is not judged: if it dies, so does the broker."""

    def __init__(self, learner_host: str, host_lease_s: float) -> None:
        self._learner_host, self._host_lease_s = learner_host, host_lease_s
        self._lost_at: dict[str, float] = {}
        self._here: set[str] = set()

    def expect(self, host: str, now: float) -> None:
        """Expect reports of a host: it may report from now on, and is lost when it does not."""
        self._lost_at[host] = now + JOIN_S + self._host_lease_s

    def receive(self, host: str, now: float) -> bool:
        """The report of an agent with workers. True when it was not there before."""
        if host == self._learner_host:
            return False
        known = host in self._here
        self._here.add(host)
        self._lost_at[host] = now + self._host_lease_s
        return not known

    def leave(self, host: str, now: float) -> bool:
        """The report of an agent without workers. True when it was there; one that was not is expected again."""
        was_here = host in self._here
        if was_here:
            self.forget(host)
        elif host in self._lost_at:
            self.expect(host, now)
        return was_here

    def forget(self, host: str) -> None:
        """Stop judging a host."""
        self._here.discard(host)
        self._lost_at.pop(host, None)

    def lost(self, now: float) -> list[str]:
        """Hosts whose lease has run out since the last call: their processes have ended."""
        gone = [host for host, at in self._lost_at.items() if now >= at]
        for host in gone:
            self.forget(host)
        return gone
