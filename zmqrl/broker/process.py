"""The broker process: one poll loop that moves bytes between sockets and `BrokerState`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import zmq

from zmqrl.broker import events as ev
from zmqrl.broker.answers import Answers
from zmqrl.broker.carried import Carried
from zmqrl.broker.doors import Doors
from zmqrl.broker.hearing import Hearing
from zmqrl.broker.state import BrokerState
from zmqrl.broker.weights_desk import WeightsDesk
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError, WireError
from zmqrl.logs.events import EventPipe
from zmqrl.messages import agent
from zmqrl.segment_transports.make import BUS, make_transport
from zmqrl.segment_transports.seal import Opening
from zmqrl.segment_transports.zmq import ZmqTransport
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.wire.active_clock import POLL_S, ActiveClock
from zmqrl.wire.sockets import drain_frames

POLL_MS = int(POLL_S * 1000)
SEE_OFF_S = 3.0
FETCH_POLL_MS = 2
"""While a process waits for a version that is on its way through this host's agent."""
MOST_MESSAGES = 1000
"""Of one socket in one round."""


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


def _carried(boot: Boot, doors: Doors) -> tuple[Carried | None, Opening | None]:
    """Where segments of other hosts come from, unless it is the bus."""
    if doors.ports is None or boot.plan.config.segment_transport.kind == BUS:
        return None, None
    return Carried(make_transport(boot.plan)), Opening(boot.plan.run_id, boot.keys, doors.admission)


class Broker:
    """Owned by the main thread."""

    def __init__(self, boot: Boot, arena: Arena) -> None:
        self._arena, self._state = arena, BrokerState(boot.plan, arena)
        self._events = EventPipe(boot.fds.get("events"))
        self._doors = Doors(boot.endpoints, boot.listen, boot.keys, boot.allowed)
        self._desk = WeightsDesk(WeightsReader(boot.fds["weights"]) if "weights" in boot.fds else None)
        self._refused: Counter[str] = Counter()
        self._told_refused = 0
        self._answers = Answers(self._doors, self._state, self._desk, self._refused)
        self._heartbeat_s, self._judge_at = boot.plan.config.limits.heartbeat_s, 0.0
        self._clock = ActiveClock(self._heartbeat_s)
        parts = (self._state, self._answers, self._desk, self._events)
        self._bus = ZmqTransport(NO_KEYS, boot.plan)
        self._bus.use(self._doors.segments)
        self._carried, opening = _carried(boot, self._doors)
        self._told_away: str | None = None
        self._hearing = Hearing(boot.plan, arena.layout.digest, self._doors, *parts, self._clock.now, opening)
        self._wake_read, self._wake_write = os.pipe()
        self._poller = zmq.Poller()
        for source in (self._doors.segments, self._doors.control, *self._doors.guards, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        if self._carried is not None:
            self._poller.register(self._carried.socket, zmq.POLLIN)
        self._stopping = self._unbound = False

    def stop(self) -> None:
        """End after this round; safe in a signal handler."""
        self._stopping = True
        os.write(self._wake_write, b"x")

    def run(self) -> None:
        """One round after the other: drain everything, decide, answer each peer once."""
        self._hearing.report_listening()
        self._events.send(agent.Ready())
        while not self._stopping:
            ready = self._poller.poll(FETCH_POLL_MS if self._desk.waiting else POLL_MS)
            if any(source in self._doors.guards for source, _ in ready):
                self._doors.guard()
            self._round()
        self._see_off()
        self._state.accept_all_sealed()
        for dropped in self._state.pop_dropped():
            self._answers.drops.add(dropped)

    def _see_off(self) -> None:
        """Workers of other hosts have their own segments: they are requested to end, and may hand them over."""
        self._round()
        until = time.monotonic() + SEE_OFF_S
        self._answers.end_remote()
        while self._state.has_remote and (left_s := until - time.monotonic()) > 0:
            self._answers.give()
            self._poller.poll(int(left_s * 1000) + 1)
            self._round()

    def close(self) -> None:
        """Let queued replies go for a moment, then close."""
        if self._carried is not None:
            self._carried.close()
        self._answers.drops.close()
        refused = self._refused + self._doors.guard()
        if refused:
            print(f"messages rejected: {dict(refused)}", file=sys.stderr, flush=True)
        self._doors.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._arena.close()

    def _round(self) -> None:
        incoming: list[ev.Event] = []
        now = self._clock.now()  # before what came is read: time in which this process was frozen is nobody's silence
        self._take(self._bus.receive(0.0), self._hearing.pushed, incoming)
        if self._carried is not None:
            self._take(self._carried.receive(MOST_MESSAGES), self._hearing.carried, incoming)
        self._take(drain_frames(self._doors.control, MOST_MESSAGES), self._hearing.said, incoming)
        incoming += self._hearing.removed()
        if now >= self._judge_at:
            self._judge_at = now + self._heartbeat_s
            incoming += self._hearing.silence(now)
            self._tell_refused()
            self._keep_bound()
            self._tell_away()
        self._answers.act(self._state.handle_all(incoming))
        self._answers.give()

    def _take(
        self,
        messages: Sequence[Sequence[zmq.Frame]],
        hear: Callable[[Sequence[zmq.Frame]], ev.Event | None],
        incoming: list[ev.Event],
    ) -> None:
        """Input is never trusted: what is not understood is counted and discarded."""
        for frames in messages:
            try:
                event = hear(frames)
            except WireError as error:
                self._refused[error.reason] += 1
                continue
            if event is not None:
                incoming.append(event)

    def _keep_bound(self) -> None:
        """The directory of the sockets may be removed: without its files new connections fail."""
        try:
            again = self._doors.bind_again()
        except (OSError, ConfigError, zmq.ZMQError) as error:
            if not self._unbound:
                cause = f"the broker's socket files were removed and cannot be recreated: {error}"
                self._problem(cause, "new processes cannot connect; retrying")
            self._unbound = True
            return
        if again:
            self._problem("the broker's socket files were removed", "sockets bound again")
        self._unbound = False

    def _tell_refused(self) -> None:
        """Rejected connections are reported to the user, once per heartbeat at most."""
        counts = self._refused + self._doors.guard()
        if counts.total() != self._told_refused:
            self._told_refused = counts.total()
            self._events.send(agent.Refused(dict(counts)))

    def _tell_away(self) -> None:
        """The launcher is notified when the carrier of segments goes away, and when it is back."""
        away = None if self._carried is None else self._carried.away
        if (away is None) != (self._told_away is None):
            back = "the segment transport delivers again"
            self._problem(away or back, "no segments arrive over it; retrying" if away else "segments arrive")
            self._told_away = away

    def _problem(self, cause: str, done: str) -> None:
        self._events.send(agent.ProblemReport(cause, done))
