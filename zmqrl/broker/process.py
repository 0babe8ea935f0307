"""The broker process: one poll loop that moves bytes between sockets and `BrokerState`."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.inbound import InboundDispatcher
from zmqrl.broker.outbound import OutboundReplies
from zmqrl.broker.segment_receiver import SegmentReceiver
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_server import WeightsServer
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError, WireError
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.make import BUS, make_backend
from zmqrl.memory_backends.seal import Opening
from zmqrl.memory_backends.zmq import ZmqBackend
from zmqrl.messages.process import MessagesRefused, ProblemReport, Ready, WorkerRelieved
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.wire.active_clock import POLL_S, ActiveClock
from zmqrl.wire.sockets import drain_frames

LOG = logging.getLogger(__name__)

POLL_MS = int(POLL_S * 1000)
DRAIN_S = 3.0
FETCH_POLL_MS = 2
"""While a process waits for a version that is on its way through this host's agent."""
MOST_MESSAGES = 1000
"""Most messages of one socket in one round."""


def main(boot: Boot) -> int:
    """Route until SIGTERM. Exit code 0; TrainingFailed when the run cannot continue."""
    arena = Arena.attach(boot.plan, boot.fds["arena"])
    broker = Broker(boot, arena)
    signal.signal(signal.SIGTERM, lambda *_: broker.stop())
    try:
        broker.run()
    finally:
        broker.close()
    return 0


def _segment_receiver(boot: Boot, sockets: BrokerSockets) -> tuple[SegmentReceiver | None, Opening | None]:
    """Where segments of other hosts come from, unless it is the bus."""
    if sockets.ports is None or boot.plan.config.memory_backend.kind == BUS:
        return None, None
    return SegmentReceiver(make_backend(boot.plan)), Opening(boot.plan.run_id, boot.keys, sockets.admission)


class Broker:
    """Owned by the main thread."""

    def __init__(self, boot: Boot, arena: Arena) -> None:
        self._arena, self._state = arena, BrokerState(boot.plan, arena, boot.listen is not None, boot.allowed.paused)
        self._events = EventPipe(boot.fds.get("events"))
        self._sockets = BrokerSockets(boot.endpoints, boot.listen, boot.keys, boot.allowed)
        buffer = WeightsReader(boot.fds["weights"]) if "weights" in boot.fds else None
        self._weights = WeightsServer(buffer, boot.plan.config.mode.rounds_ahead)
        self._refused: Counter[str] = Counter()
        self._reported_refused = 0
        self._outbound = OutboundReplies(self._sockets, self._state, self._weights)
        self._heartbeat_s, self._judge_at = boot.plan.config.limits.heartbeat_s, 0.0
        self._clock = ActiveClock(self._heartbeat_s)
        parts = (self._state, self._outbound, self._weights, self._events)
        self._bus = ZmqBackend(NO_KEYS, boot.plan)
        self._bus.use(self._sockets.segments)
        self._segment_receiver, opening = _segment_receiver(boot, self._sockets)
        self._reported_away: str | None = None
        self._inbound = InboundDispatcher(boot.plan, self._sockets, *parts, self._clock.now, opening)
        self._wake_read, self._wake_write = os.pipe()
        self._poller = zmq.Poller()
        for source in (self._sockets.segments, self._sockets.control, *self._sockets.guards, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        if self._segment_receiver is not None:
            self._poller.register(self._segment_receiver.socket, zmq.POLLIN)
        self._stopping = self._unbound = False

    def stop(self) -> None:
        """End after this round; safe in a signal handler."""
        self._stopping = True
        os.write(self._wake_write, b"x")

    def run(self) -> None:
        """One round after the other: drain everything, decide, answer each peer once."""
        self._inbound.report_listening()
        self._events.send(Ready())
        while not self._stopping:
            ready = self._poller.poll(FETCH_POLL_MS if self._weights.waiting else POLL_MS)
            if any(source in self._sockets.guards for source, _ in ready):
                self._sockets.guard()
            self._round()
        self._drain_remote_workers()
        for dropped in self._state.accept_all_sealed():
            self._outbound.drops.add(dropped)

    def _drain_remote_workers(self) -> None:
        """Workers of other hosts have their own segments: they are requested to end, and may hand them over."""
        self._round()
        until = time.monotonic() + DRAIN_S
        self._outbound.end_remote()
        while self._state.workers.has_remote and (left_s := until - time.monotonic()) > 0:
            self._outbound.send_pending()
            self._poller.poll(int(left_s * 1000) + 1)
            self._round()

    def close(self) -> None:
        """Let queued replies go for a moment, then close."""
        if self._segment_receiver is not None:
            self._segment_receiver.close()
        self._outbound.drops.close()
        refused = self._refusals()
        if refused:
            LOG.warning("messages rejected: %s", dict(refused))
        self._sockets.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._arena.close()

    def _round(self) -> None:
        now = (
            self._clock.now()
        )  # before what came is read: time in which this process was frozen is not the silence of another
        incoming = self._events_of(self._bus.receive(0.0), self._inbound.on_segments)
        if self._segment_receiver is not None:
            forwarded = self._segment_receiver.receive(MOST_MESSAGES)
            incoming += self._events_of(forwarded, self._inbound.on_forwarded)
        incoming += self._events_of(drain_frames(self._sockets.control, MOST_MESSAGES), self._inbound.on_control)
        incoming += self._inbound.pop_removed()
        if now >= self._judge_at:
            self._judge_at = now + self._heartbeat_s
            incoming += self._inbound.judge(now)
            self._report_refused()
            self._keep_bound()
            self._report_away()
        self._outbound.perform(self._state.handle_all(incoming))
        self._report_relieved()
        self._outbound.send_pending()

    def _report_relieved(self) -> None:
        for relieved in self._outbound.relieved:
            self._events.send(WorkerRelieved(relieved.index, relieved.factor, relieved.before, relieved.after))
        self._outbound.relieved.clear()

    def _events_of(
        self, messages: Sequence[Sequence[zmq.Frame]], convert: Callable[[Sequence[zmq.Frame]], ev.Event | None]
    ) -> list[ev.Event]:
        """Input is never trusted: what is not understood is counted and discarded."""
        events: list[ev.Event] = []
        for frames in messages:
            try:
                event = convert(frames)
            except WireError as error:
                self._refused[error.reason] += 1
                continue
            if event is not None:
                events.append(event)
        return events

    def _refusals(self) -> Counter[str]:
        """Refusals of messages, replies and connections so far, by reason."""
        return self._refused + self._outbound.refused + self._sockets.guard()

    def _keep_bound(self) -> None:
        """The directory of the sockets may be removed: without its files new connections fail."""
        try:
            again = self._sockets.bind_again()
        except (OSError, ConfigError, zmq.ZMQError) as error:
            if not self._unbound:
                cause = f"the broker's socket files were removed and cannot be recreated: {error}"
                self._problem(cause, "new processes cannot connect; retrying")
            self._unbound = True
            return
        if again:
            self._problem("the broker's socket files were removed", "sockets bound again")
        self._unbound = False

    def _report_refused(self) -> None:
        """Rejected connections are reported to the user, once per heartbeat at most."""
        counts = self._refusals()
        if counts.total() != self._reported_refused:
            self._reported_refused = counts.total()
            self._events.send(MessagesRefused(dict(counts)))

    def _report_away(self) -> None:
        """The launcher is notified when the memory backend goes away, and when it is back."""
        away = None if self._segment_receiver is None else self._segment_receiver.away
        if (away is None) != (self._reported_away is None):
            back = "the memory backend delivers again"
            done = "no segments arrive over it; retrying" if away else "segments arrive"
            self._events.send(ProblemReport(away or back, done, "warning" if away else "note"))
            self._reported_away = away

    def _problem(self, cause: str, done: str) -> None:
        self._events.send(ProblemReport(cause, done))
