"""Inbound messages of the broker: conversion to events of its state, and detection of silent processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.liveness import Hosts, Liveness
from zmqrl.broker.outbound import OutboundReplies
from zmqrl.broker.sockets import BrokerSockets, Senders
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_server import WeightsServer
from zmqrl.config.plan import RunPlan
from zmqrl.errors import WireError
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.seal import Opening
from zmqrl.messages import bus
from zmqrl.messages.frames import unpack, unpack_columns, unpack_descriptors
from zmqrl.messages.process import BrokerListening, Enrolled, HostHere, HostLost, WorkerState
from zmqrl.shared_memory.arena import layout_of
from zmqrl.types import AllowList, Version

CLAIM_S = 3.0
"""How long at least a new broker waits for the workers of other hosts to come back before it moves their vector envs.

Longer when `limits.lost_after_s` is: who comes back later than that would have been lost under one broker too.
"""


class InboundDispatcher:
    """Checks the sender of each message; notes the connection and the heartbeats of each worker in its record.

    It only reads everything else of the state: events change it.
    """

    def __init__(
        self,
        plan: RunPlan,
        sockets: BrokerSockets,
        state: BrokerState,
        outbound: OutboundReplies,
        weights: WeightsServer,
        events: EventPipe,
        clock: Callable[[], float] = time.monotonic,
        opening: Opening | None = None,
    ) -> None:
        """`sockets`: who sent a message. `clock`: seconds, by which silence is judged.

        `opening`: of segments that another memory backend than the bus brings.
        """
        self._clock, self._sockets, self._opening = clock, sockets, opening
        self._columns, self._layout = plan.columns, layout_of(plan).digest
        self._senders = Senders(plan)
        self._state, self._outbound, self._weights, self._events = state, outbound, weights, events
        limits = plan.config.limits
        self._liveness = Liveness(limits, state.workers, plan.config.learner.host)
        self._hosts = Hosts(plan.config.learner.host, limits.host_lease_s)
        for key in sockets.admission.hosts:
            self._hosts.expect(key.host, clock())
        self._removed: list[ev.Event] = [ev.HostAbsent(host) for host in sockets.admission.absent]
        wait_s = max(CLAIM_S, limits.lost_after_s)
        self._claims_until = clock() + wait_s if state.awaits_claims else None

    def on_segments(self, frames: Sequence[zmq.Frame]) -> ev.Event | None:
        """Descriptors, or a whole segment; None when its worker is not known yet. WireError when it is refused."""
        user = self._sockets.host_of(frames[0])
        if len(frames) > 1:
            return self._delivered(frames, user)
        if user is not None:
            raise WireError("not from there", f"descriptors from {user}")
        index, spawn, refs = unpack_descriptors(frames[0].bytes)
        return ev.Sealed(index, spawn, refs)

    def on_forwarded(self, frames: Sequence[zmq.Frame]) -> ev.Delivered | None:
        """A sealed segment from another memory backend than the bus, as `on_segments`."""
        assert self._opening is not None, "another memory backend than the bus has a seal"
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

    def on_control(self, frames: Sequence[zmq.Frame]) -> ev.Event | None:
        """A message on control; None when the state has nothing to decide. WireError when it is refused."""
        if len(frames) != 2:
            raise WireError("frames", f"{len(frames)} frames on control")
        peer, message = frames[0].bytes, unpack(frames[1].bytes)
        if isinstance(message, bus.Enrol):
            self._enrol(peer, self._sockets.key_of(frames[1]), message.token)
            return None
        user = self._admitted(peer, frames[1], message)
        if not self._senders.admit(user, message):
            return None
        match message:
            case bus.WorkerReport():
                return self._worker_reported(peer, message)
            case bus.Heartbeat():
                self._heartbeat(message)
            case bus.LearnerReport():
                self._outbound.note_learner(peer, bool(self._state.assignment.requests))
                return ev.LearnerReported(message.env_steps, message.updates)
            case bus.HostReport():
                return self._host_reported(peer, message, user)
            case bus.WorkerExit():
                self._liveness.forget(message.index)
                return ev.WorkerExited(message.index, message.spawn)
            case bus.RecordRequest():
                self._outbound.request_records(message.index, message.spawn, message.records)
            case bus.PathProbe():
                self._outbound.echo(peer, message)
            case bus.Fetch():
                self._fetch(peer, message.version)
            case bus.AllowedKeys():
                return ev.Paused(message.allowed.paused) if self._allow(message.allowed) else None
            case bus.Announce():
                return self._announced(peer, message)
            case bus.HandoverAnswer():
                return self._handover_part(peer, message)
            case _:
                raise WireError("kind", bus.kind_of(message))
        return None

    def _worker_reported(self, peer: bytes, report: bus.WorkerReport) -> ev.WorkerReported:
        if self._state.workers.allows(report.index):
            self._state.workers.of(report.index).peer = peer
        return ev.WorkerReported(
            report.index,
            report.spawn,
            report.leases,
            dict(report.streams),
            report.broker,
            report.serial,
            report.remote,
            report.open,
            report.stopped,
            report.segments,
            report.busy_us / 1e6,
            self._clock(),
        )

    def _heartbeat(self, heartbeat: bus.Heartbeat) -> None:
        if not self._state.workers.allows(heartbeat.index):
            raise WireError("process", f"{heartbeat.role} {heartbeat.index}")
        self._liveness.receive(heartbeat, self._clock())

    def _admitted(self, peer: bytes, frame: zmq.Frame, message: bus.Message) -> str | None:
        """The sender's host. An agent without a valid key is refused as everyone is, and learns that it is to end."""
        try:
            return self._sockets.host_of(frame)
        except WireError as error:
            if isinstance(message, bus.HostReport):
                self._outbound.send_shutdown_notice(peer, str(error))
            raise

    def _enrol(self, peer: bytes, public: str | None, token: str) -> None:
        """Enrol a host whose key may not be listed yet. Only the launcher adds it: the host repeats its request."""
        if public is None:
            raise WireError("not from there", "enrol without a key")
        admission = self._sockets.admission
        try:
            if admission.knows(public):
                self._outbound.welcome(peer)
            else:
                self._events.send(Enrolled(admission.enrol(token), public))
        except WireError as error:
            self._outbound.send_shutdown_notice(peer, str(error))
            raise

    def _allow(self, allowed: AllowList) -> bool:
        """Hosts that left the list have ended, or were cut off: their workers are removed, as after a lease.

        Returns:
            Whether it is newer than the one before.
        """
        before = self._sockets.admission.hosts
        if not self._sockets.admission.replace(allowed):
            return False
        after = self._sockets.admission.hosts
        for key in sorted(before - after):
            self._hosts.forget(key.host)
            self._removed.append(self._host_removed(key.host))
        self._removed += [ev.HostAbsent(host) for host in allowed.absent]
        for key in sorted(after - before):
            self._hosts.expect(key.host, self._clock())
        self.report_listening()
        return True

    def _host_removed(self, host: str) -> ev.HostRemoved:
        return ev.HostRemoved(host, self._senders.workers_of(host))

    def pop_removed(self) -> list[ev.Event]:
        """Hosts that the allow-list has lost since the last call, and those of the plan that are not expected."""
        removed, self._removed = self._removed, []
        return removed

    def report_listening(self) -> None:
        """Where other hosts reach this broker, and which allow-list it follows."""
        if self._sockets.ports is not None:
            self._events.send(BrokerListening(self._sockets.ports, self._sockets.admission.serial))

    def _fetch(self, peer: bytes, version: Version) -> None:
        """Only what has been announced can be on its way."""
        if self._state.notice is None or version > self._state.notice.version:
            raise WireError("version", f"{version} has not been announced")
        self._weights.request(peer, version)

    def _host_reported(self, peer: bytes, report: bus.HostReport, user: str | None) -> ev.HostReported | None:
        """Always answered: it is how an agent knows that this broker lives."""
        if user is not None and self._state.workers.have_failed(report.workers):
            self._outbound.send_shutdown_notice(
                peer, "the host was silent for too long: other workers have its vector envs"
            )
            return None
        for index, spawn in report.alive.items():
            if self._state.workers.allows(index):
                self._liveness.expect(index, spawn, index in report.ready, self._clock())
        self._senders.learn(report.host, filter(self._state.workers.allows, (*report.workers, *report.alive)))
        if report.workers:
            if user is not None:
                self._outbound.note_agent(report.host, peer)
            if self._hosts.receive(report.host, self._clock()):
                self._events.send(HostHere(report.host, report.workers))
        elif self._hosts.leave(report.host, self._clock()):
            self._events.send(HostHere(report.host, []))
        self._outbound.welcome(peer, self._liveness.hanging(report.host, report.alive, self._clock()))
        return ev.HostReported(report.alive, report.failed, report.host, report.workers, report.acting)

    def _handover_part(self, peer: bytes, answer: bus.HandoverAnswer) -> ev.HandoverAnswered | None:
        """A part that was there already is not answered: each answer brings the next one."""
        parts = self._outbound.handover_parts
        handover = parts.take(answer.part, self._state.assignment.requests)
        self._outbound.note_learner(peer, parts.progressed)
        return None if handover is None else ev.HandoverAnswered(handover)

    def _announced(self, peer: bytes, announce: bus.Announce) -> ev.Announced:
        """An announcement is answered only when it is repeated: the learner repeats it until it is confirmed."""
        repeated = self._state.notice is not None and self._state.notice.version == announce.notice.version
        self._outbound.note_learner(peer, bool(self._state.assignment.requests) or repeated)
        return ev.Announced(announce.notice, announce.back)

    def judge(self, now: float) -> list[ev.Event]:
        """Members that became silent or returned. The launcher is notified; each agent is, when it reports next."""
        found: list[ev.Event] = []
        for judged in self._liveness.judge(self._state.has_work, now):
            self._events.send(WorkerState(judged.role, judged.index, judged.spawn, judged.state))
            if judged.role == "worker" and judged.state == "lost":
                found.append(ev.WorkerSilent(judged.index, judged.spawn))
        for host in self._hosts.lost(now):
            self._events.send(HostLost(host))
            found.append(self._host_removed(host))
        if self._claims_until is not None and now >= self._claims_until:
            self._claims_until = None
            found.append(ev.ClaimsExpired())
        return found
