"""Inbound messages of the broker: conversion to events of its state, and detection of silent processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.answers import Answers
from zmqrl.broker.doors import Doors
from zmqrl.broker.hosts import Hosts
from zmqrl.broker.liveness import Beat, Liveness, Member
from zmqrl.broker.senders import Senders
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_desk import WeightsDesk
from zmqrl.config.plan import RunPlan
from zmqrl.errors import WireError
from zmqrl.logs.events import EventPipe
from zmqrl.messages import agent, bus
from zmqrl.messages.frames import unpack, unpack_columns, unpack_descriptors
from zmqrl.segment_transports.seal import Opening
from zmqrl.types import AllowList, Version

CLAIM_S = 3.0
"""How long at least a new broker waits for the workers of other hosts to come back before it moves their vector envs.

Longer when `limits.lost_after_s` is: who comes back later than that would have been lost under one broker too.
"""


class Hearing:
    """Checks the sender of each message and records liveness. It only reads the state: events change it."""

    def __init__(
        self,
        plan: RunPlan,
        layout: int,
        doors: Doors,
        state: BrokerState,
        answers: Answers,
        desk: WeightsDesk,
        events: EventPipe,
        clock: Callable[[], float] = time.monotonic,
        opening: Opening | None = None,
    ) -> None:
        """`layout`: the arena's digest. `doors`: who sent a message. `clock`: seconds, by which silence is judged.

        `opening`: of segments that another carrier than the bus brings.
        """
        self._clock, self._doors, self._opening = clock, doors, opening
        self._columns, self._layout = plan.columns, layout
        self._senders = Senders(plan)
        self._state, self._answers, self._desk, self._events = state, answers, desk, events
        limits = plan.config.limits
        self._liveness = Liveness(limits)
        self._hosts = Hosts(plan.config.learner.host, limits.host_lease_s)
        for key in doors.admission.hosts:
            self._hosts.expect(key.host, clock())
        self._claims_until: float | None = None
        self._removed: list[ev.Event] = []
        if doors.ports is not None and state.incarnation > 1:
            state.await_claims()
            self._claims_until = clock() + max(CLAIM_S, limits.lost_after_s)

    def pushed(self, frames: Sequence[zmq.Frame]) -> ev.Event | None:
        """Descriptors, or a whole segment; None when its worker is not known yet. WireError when it is refused."""
        user = self._doors.host_of(frames[0])
        if len(frames) > 1:
            return self._delivered(frames, user)
        if user is not None:
            raise WireError("not from there", f"descriptors from {user}")
        index, spawn, refs = unpack_descriptors(frames[0].bytes)
        return ev.Sealed(index, spawn, refs)

    def carried(self, frames: Sequence[zmq.Frame]) -> ev.Delivered | None:
        """A sealed segment from another carrier than the bus, as `pushed`."""
        assert self._opening is not None, "what is carried is opened"
        host = self._opening.open([frame.buffer for frame in frames])
        if len(frames) < 2:
            raise WireError("segment", "a seal without a segment")
        return self._delivered(frames[1:], host)

    def _delivered(self, frames: Sequence[zmq.Frame], user: str | None) -> ev.Delivered | None:
        message = unpack(frames[0].bytes)
        if not isinstance(message, bus.Segment) or message.layout != self._layout:
            raise WireError("segment", "not a segment of this run's layout")
        if not self._senders.admit(user, message):
            return None
        columns = unpack_columns([frame.buffer for frame in frames[1:]], self._columns)
        return ev.Delivered(message.index, message.spawn, message.ref, message.meta.meta(), columns)

    def said(self, frames: Sequence[zmq.Frame]) -> ev.Event | None:
        """A message on control; None when the state has nothing to decide. WireError when it is refused."""
        if len(frames) != 2:
            raise WireError("frames", f"{len(frames)} frames on control")
        peer, message = frames[0].bytes, unpack(frames[1].bytes)
        if isinstance(message, bus.Enrol):
            self._enrol(peer, self._doors.key_of(frames[1]), message.token)
            return None
        user = self._admitted(peer, frames[1], message)
        if not self._senders.admit(user, message):
            return None
        match message:
            case bus.WorkerReport():
                if self._state.may_be(message.index):
                    self._answers.worker_at(message.index, peer)
                return _worker_is(message)
            case bus.Beat():
                self._beat(message)
            case bus.LearnerReport():
                self._answers.learner_at(peer, bool(self._state.requests))
                return ev.LearnerIs(message.updates)
            case bus.HostReport():
                return self._agent(peer, message, user)
            case bus.Goodbye():
                self._liveness.forget(Member("worker", message.index))
                return ev.Goodbye(message.index, message.spawn)
            case bus.Want():
                self._answers.want(message.index, message.spawn, message.records)
            case bus.Fetch():
                self._fetch(peer, message.version)
            case bus.Allow():
                self._allow(message.allowed)
            case bus.Announce():
                repeated = self._knows(message.notice.version)
                self._answers.learner_at(peer, bool(self._state.requests) or repeated)
                return ev.Announced(message.notice, message.back)
            case bus.Answer():
                return self._answered(peer, message)
            case _:
                raise WireError("kind", bus.kind_of(message))
        return None

    def _beat(self, beat: bus.Beat) -> None:
        member = Member(beat.role, beat.index)
        if not self._state.may_be(member.index):
            raise WireError("member", str(member))
        self._liveness.hear(Beat(member, beat.spawn, beat.progress), self._clock())

    def _admitted(self, peer: bytes, frame: zmq.Frame, message: bus.Message) -> str | None:
        """The sender's host. An agent without a valid key is refused as everyone is, and learns that it is to end."""
        try:
            return self._doors.host_of(frame)
        except WireError as error:
            if isinstance(message, bus.HostReport):
                self._answers.farewell(peer, str(error))
            raise

    def _enrol(self, peer: bytes, public: str | None, token: str) -> None:
        """Of a host whose key may not be on the list yet. Only the launcher adds it: the host repeats its request."""
        if public is None:
            raise WireError("not from there", "enrol without a key")
        admission = self._doors.admission
        try:
            if admission.knows(public):
                self._answers.welcome(peer)
            else:
                self._events.send(agent.Enrolled(admission.enrol(token), public))
        except WireError as error:
            self._answers.farewell(peer, str(error))
            raise

    def _allow(self, allowed: AllowList) -> None:
        """Hosts that left the list have ended, or were cut off: their workers are removed, as after a lease."""
        before = self._doors.admission.hosts
        if not self._doors.admission.replace(allowed):
            return
        after = self._doors.admission.hosts
        for key in sorted(before - after):
            self._hosts.forget(key.host)
            self._removed.append(self._gone(key.host))
        for key in sorted(after - before):
            self._hosts.expect(key.host, self._clock())
        self.report_listening()

    def _gone(self, host: str) -> ev.HostGone:
        return ev.HostGone(host, self._senders.held_by(host))

    def removed(self) -> list[ev.Event]:
        """Hosts that the allow-list has lost since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def report_listening(self) -> None:
        """Where other hosts reach this broker, and which allow-list it follows."""
        if self._doors.ports is not None:
            self._events.send(agent.Listening(self._doors.ports, self._doors.admission.serial))

    def _fetch(self, peer: bytes, version: Version) -> None:
        """Only what has been announced can be on its way."""
        if self._state.notice is None or version > self._state.notice.version:
            raise WireError("version", f"{version} has not been announced")
        self._desk.ask(peer, version)

    def _agent(self, peer: bytes, report: bus.HostReport, user: str | None) -> ev.HostIs | None:
        """Always answered: it is how an agent knows that this broker lives."""
        if user is not None and self._state.gave_up(report.workers):
            self._answers.farewell(peer, "the host was silent for too long: other workers have its vector envs")
            return None
        for index, spawn in report.alive.items():
            if self._state.may_be(index):
                self._liveness.expect(Member("worker", index), spawn, index in report.ready, self._clock())
        self._senders.learn(report.host, filter(self._state.may_be, (*report.workers, *report.alive)))
        if report.workers:
            if user is not None:
                self._answers.agent_at(report.host, peer)
            if self._hosts.hear(report.host, self._clock()):
                self._events.send(agent.HostHere(report.host, report.workers))
        elif self._hosts.leave(report.host):
            self._events.send(agent.HostHere(report.host, []))
        self._answers.welcome(peer)
        return ev.HostIs(report.alive, report.given_up, report.host, report.workers)

    def _answered(self, peer: bytes, answer: bus.Answer) -> ev.Answered | None:
        """A part that was there already is not answered: each answer brings the next one."""
        parts = self._answers.take_up_parts
        take_up = parts.take(answer.part, self._state.requests)
        self._answers.learner_at(peer, parts.progressed)
        return None if take_up is None else ev.Answered(take_up)

    def _knows(self, version: Version) -> bool:
        """An announcement is answered only when it is repeated: the learner repeats it until it is confirmed."""
        return self._state.notice is not None and self._state.notice.version == version

    def silence(self, now: float) -> list[ev.Event]:
        """Members that became silent or returned. The agent is notified and decides on the action."""
        found: list[ev.Event] = []
        for judged in self._liveness.judge(self._has_work, now):
            role, index = judged.member.role, judged.member.index
            self._events.send(agent.WorkerState(role, index, judged.spawn, judged.state))
            if role == "worker" and judged.state == "lost":
                found.append(ev.Silent(index, judged.spawn))
        for host in self._hosts.lost(now):
            self._events.send(agent.HostLost(host))
            found.append(self._gone(host))
        if self._claims_until is not None and now >= self._claims_until:
            self._claims_until = None
            found.append(ev.WaitedEnough())
        return found

    def _has_work(self, member: Member) -> bool:
        return member.role == "worker" and self._state.has_work(member.index)


def _worker_is(report: bus.WorkerReport) -> ev.WorkerIs:
    return ev.WorkerIs(
        report.index,
        report.spawn,
        report.leases,
        dict(report.streams),
        report.broker,
        report.serial,
        report.remote,
        report.open,
        report.stopped,
    )
