"""The host agent's loop: what is readable or writable, what is due, the launcher's commands, the lease of the host."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.agent.commands import Commands
from zmqrl.agent.data_plane import DataPlane
from zmqrl.agent.gpu_meter import GpuMeter
from zmqrl.agent.host_processes import HostProcesses
from zmqrl.agent.other_use import OtherUseMeter
from zmqrl.agent.output import AgentOutput, LogStream
from zmqrl.agent.process_events import SAMPLE_EVERY_S, ProcessEvents
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.agent.shutdown_policy import ShutdownMode
from zmqrl.config.plan import Boot
from zmqrl.errors import DeadlineExceeded, StoreError
from zmqrl.messages.agent import ActingDigest, Alive, GpuUse, Joined, LeaseLost, Source, Unreachable
from zmqrl.messages.command import Join, KillAll, SetAllowList, SetWorkers, Stop
from zmqrl.messages.process import MessagesRefused
from zmqrl.supervision.own_session import adopt_orphans
from zmqrl.wire.active_clock import ActiveClock

LOG = logging.getLogger(__name__)
DRAIN_S = 1.0


class HostLease:
    """Renewed by each of its sources; one that is silent for the lease is enough to end it."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._renewed_at: dict[Source, float] = {}

    def renew(self, source: Source, now: float) -> None:
        """`source` lives; after its first renewal, renewals are required. `now` in seconds of one clock."""
        self._renewed_at[source] = now

    def silent(self, now: float) -> Source | None:
        """The source whose lease has run out, if any."""
        for source, at in self._renewed_at.items():
            if now - at >= self._lease_s:
                return source
        return None


def _compared_runtime(boot: Boot) -> str | None:
    """How workers act, where hosts compare what that computes: in a sync run with other hosts."""
    if boot.is_alone or not boot.plan.config.mode.deterministic:
        return None
    return str(boot.plan.acting.get("runtime", "numpy"))


@dataclass
class _Clock:
    """When the next heartbeat and the next sample are due, in monotonic seconds."""

    heartbeat_at: float
    usage_at: float


class HostAgent:
    """Holds one host's part of a run. Everything happens in the thread that calls `run`."""

    def __init__(
        self,
        boot: Boot,
        spawner: ProcessSpawner,
        data_plane: DataPlane,
        commands: Commands,
        output: AgentOutput,
        acting_gpu: str = "",
    ) -> None:
        """`acting_gpu`: the model on which workers act; empty: the processor."""
        self._limits = boot.plan.config.limits
        self._data_plane = data_plane
        self._output = output
        self._events = ProcessEvents(output, LogStream(spawner.log_dir, output) if boot.streams_logs else None)
        self._processes = HostProcesses(boot, spawner, data_plane, self._events)
        self._commands = commands
        self._lease = HostLease(self._limits.host_lease_s)
        self._active = ActiveClock(self._limits.heartbeat_s)
        self._received = 0
        self._refused: Counter[str] = Counter()
        """Counts of refused messages by reason, as reported last."""
        self._not_fetched = ""
        """The last reason: a store that is away for minutes is one line of the log."""
        self._terminated = False
        now = time.monotonic()
        self._clock = _Clock(now, now + SAMPLE_EVERY_S)
        host = boot.plan.config.hosts.get(boot.host)
        yields = host is not None and host.yield_when is not None
        self._other_use = OtherUseMeter(now) if yields else None
        self._runtime, self._acting_gpu = _compared_runtime(boot), (acting_gpu,) if acting_gpu else ()
        self._gpu_meter = GpuMeter()
        self._wakeup_read, self._wakeup_write = os.pipe()

    def run(self) -> int:
        """Run the host's processes until all have ended. Returns the exit code."""
        self._catch_sigterm()
        adopt_orphans()
        self._lease.renew("launcher", self._active.now())  # by the boot line
        is_ending = self._commands.is_end_requested()
        if self._data_plane.endpoints is not None and not is_ending:
            self._processes.begin()
        self._read_commands()  # what came before
        while not self._processes.is_over(time.monotonic()):
            self._turn()
        self._gpu_meter.close()
        self._processes.finish()
        self._output.drain(DRAIN_S)
        self._release_sigterm()
        return 1 if self._processes.failed else 0

    def _catch_sigterm(self) -> None:
        for fd in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wakeup_write)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))

    def _release_sigterm(self) -> None:
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup_read, self._wakeup_write):
            os.close(fd)

    def _turn(self) -> None:
        ready = dict(self._poller().poll(math.ceil(self._timeout_s() * 1000)))
        if any(socket in ready for socket in self._data_plane.sockets):
            self._take_notices()
        if self._commands.fd in ready:
            self._read_commands()
        if self._wakeup_read in ready:
            os.read(self._wakeup_read, 4096)
        self._processes.handle(ready)
        self._output.flush()
        self._on_time(time.monotonic())

    def _poller(self) -> zmq.Poller:
        """Created again each turn, so that closed descriptors are not in it."""
        poller = zmq.Poller()
        readable: list[Any] = [self._wakeup_read, *self._data_plane.sockets, *self._processes.readable()]
        if not self._commands.ended:
            readable.append(self._commands.fd)
        for socket in readable:
            poller.register(socket, zmq.POLLIN)
        for fd in (*self._processes.writable(), *([self._output.fd] if self._output.pending else [])):
            poller.register(fd, zmq.POLLOUT)
        return poller

    def _timeout_s(self) -> float:
        now = time.monotonic()
        due = [self._clock.heartbeat_at, self._clock.usage_at, self._processes.next_due(now)]
        return max(0.0, min(at for at in due if at is not None) - now)

    def _on_time(self, now: float) -> None:
        if self._terminated:
            self._terminated = False
            self._processes.end(ShutdownMode.CLEAN)
        self._check_lease(self._active.now())
        self._processes.step(now)
        if now >= self._clock.heartbeat_at:
            self._clock.heartbeat_at = now + self._limits.heartbeat_s
            self._compute_digest()
            gpus = self._gpu_meter.sample(now)
            if gpus is not None:
                self._output.send(GpuUse(gpus))
            self._processes.report()
            self._processes.report_addresses()
            self._output.send(Alive())
            self._events.send_logs()
            self._report_refused()
        if now >= self._clock.usage_at:
            self._clock.usage_at = now + SAMPLE_EVERY_S
            self._processes.measure()
            if self._other_use is not None:
                self._output.send(self._other_use.sample(now))

    def _compute_digest(self) -> None:
        """Once processes are ready: it imports numpy, for which those that start would wait on a host of few cores."""
        if self._runtime is None or not self._processes.has_ready:
            return
        from zmqrl.acting.digest import acting_digests  # most runs do not need it

        self._processes.acting = " ".join((acting_digests()[self._runtime], *self._acting_gpu))
        self._runtime = None
        self._output.send(ActingDigest(self._processes.acting))

    def _report_refused(self) -> None:
        counts = self._commands.refused + self._processes.refused + self._data_plane.refused
        if counts != self._refused:
            self._refused = counts
            self._output.send(MessagesRefused(dict(counts)))

    def _check_lease(self, now: float) -> None:
        received = self._data_plane.received
        if received is not None and received != self._received:
            self._received = received
            self._lease.renew("broker", now)
        silent = self._lease.silent(now)
        if silent is not None and not self._processes.ending:
            lease_s = self._limits.host_lease_s
            LOG.error("the %s has been silent for limits.host_lease_s (%g s): the host agent stops", silent, lease_s)
            self._output.send(LeaseLost(silent))
            self._processes.end(ShutdownMode.HURRIED)

    def _take_notices(self) -> None:
        """Weights on their way back, and what the broker reports of this host."""
        notice = None
        try:
            notice = self._data_plane.take_notice()
        except StoreError as error:
            if str(error) != self._not_fetched:
                LOG.warning("weights not fetched, retrying at the next notice: %s", error)
            self._not_fetched = str(error)
        for hanging in self._data_plane.hanging:
            self._processes.end_hanging(hanging)
        cause = self._data_plane.shutdown_cause
        if cause is not None:
            if not self._processes.ending:
                LOG.warning("the broker ends this host's part of the run: %s", cause)
            self._processes.end(ShutdownMode.CLEAN)
        if notice is not None:
            self._processes.notify(notice)

    def _read_commands(self) -> None:
        commands = self._commands.read()
        if self._commands.ended:
            self._processes.end(ShutdownMode.HURRIED)
        for received in commands:
            self._lease.renew("launcher", self._active.now())
            match received:
                case Stop():
                    self._processes.end(ShutdownMode.FAILED if received.failed else ShutdownMode.CLEAN)
                case KillAll():
                    self._processes.end(ShutdownMode.KILL)
                case Join() if self._data_plane.endpoints is None and not self._processes.ending:
                    self._join(received)
                case SetWorkers() if not self._processes.ending:
                    self._processes.set_workers(tuple(received.workers), received.stays)
                case SetAllowList():
                    self._data_plane.allow(received.allowed)

    def _join(self, join: Join) -> None:
        try:
            reached = self._data_plane.join(join)
        except DeadlineExceeded as error:
            self._output.send(Unreachable(str(error)))
            self._processes.end(ShutdownMode.KILL)
            return
        if reached is not None:
            milliseconds = round(reached.milliseconds, 1)
            self._output.send(Joined(reached.address, milliseconds, self._data_plane.sees_store))
        self._processes.report()
        self._processes.begin()
