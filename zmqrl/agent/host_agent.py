"""The host agent's loop: it moves bytes between processes; what to do is decided by `supervision`."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import zmq

from zmqrl.agent.addresses import own_addresses
from zmqrl.agent.children import Child, Nursery
from zmqrl.agent.commands import Commands
from zmqrl.agent.data_plane import DataPlane, Join
from zmqrl.agent.end import End
from zmqrl.agent.lease import HostLease
from zmqrl.agent.log_stream import LogStream
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.usage import SAMPLE_EVERY_S, Usage
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Boot, Listen
from zmqrl.errors import DeadlineExceeded, StoreError
from zmqrl.supervision.ending import Manner
from zmqrl.supervision.restarts import Action, Died, FailRun, GiveUp, Place, RestartAfter, Start, Supervision, Tick
from zmqrl.types import Notice

LOG = logging.getLogger(__name__)
ENDING_TICK_S = 0.05
LAST_WORDS_S = 1.0
DUMP_S = 0.5
"""What faulthandler may take to write the stacks of a stalled process."""


@dataclass
class _Clock:
    """When the next heartbeat and the next sample are due, in monotonic seconds."""

    heartbeat_at: float
    usage_at: float


class HostAgent:
    """Starts, watches and ends the processes of one host. Everything happens in the thread that calls `run`."""

    def __init__(self, boot: Boot, nursery: Nursery, data_plane: DataPlane, output: AgentOutput, stdin_fd: int) -> None:
        self._boot = boot
        self._plan = boot.plan
        self._nursery = nursery
        self._data_plane = data_plane
        self._output = output
        self._commands = Commands(stdin_fd)
        self._supervision = Supervision(self._plan.config.restart, self._plan.total_workers)
        self._children: dict[Place, Child] = {}
        self._workers = tuple(boot.workers)
        self._kill_at: dict[Place, tuple[int, float]] = {}
        self._end = End(boot, self._children, self._unwatch)
        self._lease = HostLease(self._plan.config.limits.host_lease_s)
        self._logs = LogStream(nursery.log_dir, output) if boot.remote else None
        self._log_names: set[str] = set()
        self._failed = self._terminated = False
        self._usage = Usage()
        self._learner_ledger: Any = None
        self._heard = 0
        self._poller = zmq.Poller()
        now = time.monotonic()
        self._clock = _Clock(now, now + SAMPLE_EVERY_S)
        self._wakeup_read, self._wakeup_write = os.pipe()

    def run(self) -> int:
        """Hold the host's processes until all have ended. Returns the exit code."""
        self._catch_sigterm()
        self._poller.register(self._commands.fd, zmq.POLLIN)
        if self._data_plane.endpoints is not None:
            self._begin()
        while not self._end.is_over(time.monotonic()):
            self._turn()
        self._finish()
        return 1 if self._failed else 0

    def _catch_sigterm(self) -> None:
        for fd in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wakeup_write)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._poller.register(self._wakeup_read, zmq.POLLIN)

    def _begin(self) -> None:
        """The broker is there, or is about to be started: so is everything else."""
        for socket in self._data_plane.sockets:
            self._poller.register(socket, zmq.POLLIN)
        for place in self._first_places():
            self._start(place, 0)

    def _first_places(self) -> list[Place]:
        """Learner before workers: it publishes version 0 while they start; the evaluator can wait."""
        places = []
        learner_here = self._boot.host == self._plan.config.learner.host
        if learner_here and self._plan.config.run.mode != "single":
            places.append(Place("broker", 0))
        if learner_here:
            places.append(Place("learner", 0))
        places += [Place("worker", index) for index in self._workers]
        if learner_here and self._plan.config.evaluator.episodes > 0:
            places.append(Place("evaluator", 0))
        return places

    def _turn(self) -> None:
        """One poll and what came of it."""
        self._watch_writable()
        ready = dict(self._poller.poll(math.ceil(self._timeout_s() * 1000)))
        if any(socket in ready for socket in self._data_plane.sockets):
            self._take_notices()
        if self._commands.fd in ready:
            self._read_commands()
        if self._wakeup_read in ready:
            os.read(self._wakeup_read, 4096)
        for child in list(self._children.values()):
            if child.events_fd in ready:
                self._take_events(child)
            if child.pidfd in ready:
                self._reap(child)
            elif child.stdin_fd in ready:
                child.flush()
        self._output.flush()
        self._on_time(time.monotonic())

    def _watch_writable(self) -> None:
        self._poll_for_room(self._output.fd, self._output.pending)
        evaluator = self._children.get(Place("evaluator", 0))
        if evaluator is not None and evaluator.stdin_fd >= 0:
            self._poll_for_room(evaluator.stdin_fd, evaluator.has_unwritten)

    def _unwatch(self, fd: int) -> None:
        if fd in self._poller:
            self._poller.unregister(fd)

    def _poll_for_room(self, fd: int, wanted: bool) -> None:
        if wanted:
            self._poller.register(fd, zmq.POLLOUT)
        else:
            self._unwatch(fd)

    def _timeout_s(self) -> float:
        now = time.monotonic()
        due = [self._clock.heartbeat_at, self._clock.usage_at]
        if self._end.begun:
            due.append(now + ENDING_TICK_S)
        restart_at = self._supervision.next_due()
        if restart_at is not None:
            due.append(restart_at)
        return max(0.0, min(due) - now)

    def _on_time(self, now: float) -> None:
        if self._terminated:
            self._terminated = False
            self._begin_ending(Manner.CLEAN)
        self._check_lease(now)
        if self._end.begun:
            self._end.step(self._data_plane.current, now)
        else:
            self._act(self._supervision.handle(Tick(), now))
        self._kill_late(now)
        if now >= self._clock.heartbeat_at:
            self._clock.heartbeat_at = now + self._plan.config.limits.heartbeat_s
            self._report()
            self._send_logs()
        if now >= self._clock.usage_at:
            self._clock.usage_at = now + SAMPLE_EVERY_S
            processes = self._usage.sample(self._children.values())
            self._output.send("usage", processes=processes, leases=self._data_plane.leases_in_use())
            for child in self._children.values():
                child.cap_log()

    def _check_lease(self, now: float) -> None:
        heard = self._data_plane.heard
        if heard is not None and heard != self._heard:
            self._heard = heard
            self._lease.renew("broker", now)
        silent = self._lease.silent(now)
        if silent is not None and not self._end.begun:
            lease_s = self._plan.config.limits.host_lease_s
            LOG.error("the %s has been silent for limits.host_lease_s (%g s): this host ends", silent, lease_s)
            self._output.send("lease_lost", source=silent)
            self._begin_ending(Manner.HURRIED)

    def _send_logs(self) -> None:
        if self._logs is not None:
            self._logs.follow(sorted(self._log_names))

    # weights on their way back

    def _take_notices(self) -> None:
        try:
            notice = self._data_plane.take_notice()
        except StoreError as error:
            LOG.warning("weights not fetched, the next notice tries again: %s", error)
            return
        if self._data_plane.farewell:
            self._begin_ending(Manner.CLEAN)
        if notice is None:
            return
        for child in self._children.values():
            child.wake()
        self._tell_evaluator({"notice": to_json(notice)})

    def _tell_evaluator(self, line: Mapping[str, Any]) -> None:
        evaluator = self._children.get(Place("evaluator", 0))
        if evaluator is not None and evaluator.stdin_fd >= 0:
            evaluator.write_line(line)

    # processes

    def _start(self, place: Place, spawn: int) -> None:
        assert self._data_plane.endpoints is not None, "nothing is started before the broker is known"
        boot = replace(self._boot, endpoints=self._data_plane.endpoints)
        child = self._nursery.start(boot, place, spawn, self._data_plane.fds_of(place.role))
        self._children[place] = child
        self._log_names.add(child.log.stem)
        self._poller.register(child.pidfd, zmq.POLLIN)
        self._poller.register(child.events_fd, zmq.POLLIN)
        self._output.send(
            "started",
            role=place.role,
            index=place.index,
            pid=child.identity.pid,
            start_time=child.identity.start_time,
            spawn=spawn,
        )
        notice = self._data_plane.current
        if place.role == "evaluator" and notice is not None:
            child.write_line({"notice": to_json(notice)})
        self._report()

    def _take_events(self, child: Child) -> None:
        for event in child.read_events():
            name = event.pop("event")
            if name == "notice":
                self._data_plane.current = from_json(Notice, event["notice"])
                self._tell_evaluator({"notice": event["notice"]})
                continue
            if name == "worker_state":
                self._judged(Place(event["member"], event["place"]), event["spawn"], event["state"])
            elif name == "listening" and self._boot.listen is not None:
                # a broker that is started again has to be where everybody looks for it
                self._boot = replace(self._boot, listen=Listen(self._boot.listen.address, tuple(event["ports"])))
                event |= {"addresses": own_addresses(), "token": self._data_plane.token}
            elif name == "ready":
                child.ready = True
            elif name == "left":
                child.told_to_end = True
            elif name == "fault":
                child.last_fault = event
            elif name == "ended":
                self._end.final_notice = event.get("notice")
                self._learner_ledger = event.get("ledger")
                self._usage.sample(self._children.values())
            self._output.send(name, role=child.place.role, index=child.place.index, **event)
        if not child.events_open:
            self._unwatch(child.events_fd)

    def _judged(self, place: Place, spawn: int, state: str) -> None:
        """A child that hangs is killed, its stacks in its log if it can still write them; supervision replaces it.

        A worker that is silent and was not reaped is stopped, or cannot run: its slots come back with its death alone.
        """
        child, limits = self._children.get(place), self._plan.config.limits
        if child is None or child.spawn != spawn:
            return
        if state == "stalled":
            why = f"stalled: no progress for limits.stalled_after_s ({limits.stalled_after_s:g} s)"
        elif state == "lost" and place.role == "worker":
            why = f"hangs: silent for limits.lost_after_s ({limits.lost_after_s:g} s)"
        else:
            return
        child.last_fault = {"error": f"{why}, killed"}
        child.process.send_signal(signal.SIGUSR2)
        self._kill_at[place] = (spawn, time.monotonic() + DUMP_S)

    def _kill_late(self, now: float) -> None:
        for place, (spawn, at) in list(self._kill_at.items()):
            if now >= at:
                del self._kill_at[place]
                child = self._children.get(place)
                if child is not None and child.spawn == spawn:
                    child.process.kill()

    def _reap(self, child: Child) -> None:
        self._take_events(child)
        code = child.process.wait()
        for fd in (child.pidfd, child.events_fd, child.stdin_fd):
            self._unwatch(fd)
        child.close()
        place = child.place
        del self._children[place]
        learner_done = place.role == "learner" and code == 0
        drained = place.role == "worker" and place.index not in self._workers
        expected = child.told_to_end or learner_done or drained
        cause = child.cause_of_end()
        if expected:
            self._end.count(child)
        self._send_logs()
        self._output.send(
            "exit",
            role=place.role,
            index=place.index,
            pid=child.identity.pid,
            code=max(code, 0) if code >= 0 else None,
            signal=signal.Signals(-code).name if code < 0 else None,
            expected=expected,
            cause=cause,
            detail=dict(child.last_fault.get("detail", {})),
            log=str(child.log),
            log_tail=child.log_tail(),
        )
        if learner_done:
            self._begin_ending(Manner.CLEAN)
        elif not self._end.begun and not (drained or expected):
            self._act(self._supervision.handle(Died(place, code, cause), time.monotonic()))
        self._report()
        self._end_when_drained()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._start(action.place, action.spawn)
            elif isinstance(action, RestartAfter):
                self._output.send("restart", role=action.place.role, index=action.place.index, in_s=action.delay_s)
            elif isinstance(action, GiveUp):
                self._output.send("gave_up", role=action.place.role, index=action.place.index, cause=action.cause)
            elif isinstance(action, FailRun):
                self._failed = True
                self._output.send("failed", cause=action.cause)
                self._begin_ending(Manner.FAILED)

    def _report(self) -> None:
        """Tell the broker who lives; it takes leases back only from processes that were reaped."""
        children = {place.index: child for place, child in self._children.items() if place.role == "worker"}
        alive = {index: child.spawn for index, child in children.items()}
        ready = [index for index, child in children.items() if child.ready]
        given_up = sorted(place.index for place in self._supervision.given_up if place.role == "worker")
        held = [index for index in self._workers if index not in given_up]
        self._data_plane.report(alive, ready, given_up, () if self._end.begun and not alive else held)

    # what the launcher says

    def _read_commands(self) -> None:
        for command in self._commands.read():
            self._lease.renew("launcher", time.monotonic())
            name = command.get("command")
            if name == "stop":
                self._begin_ending(Manner.CLEAN)
            elif name == "kill":
                self._begin_ending(Manner.KILL)
            elif name == "join" and self._data_plane.endpoints is None and not self._end.begun:
                self._join(Join(tuple(command["addresses"]), tuple(command["ports"]), command.get("token")))
            elif name == "hold":
                self._hold(tuple(command["workers"]))
            elif name == "gone":
                self._data_plane.host_gone(command["host"], command["workers"])
        if self._commands.ended:
            self._poller.unregister(self._commands.fd)
            self._begin_ending(Manner.HURRIED)

    def _join(self, join: Join) -> None:
        try:
            reached = self._data_plane.join(join)
        except DeadlineExceeded as error:
            self._output.send("unreachable", cause=str(error))
            self._begin_ending(Manner.KILL)
            return
        if reached is not None:
            found = {"address": reached.address, "milliseconds": round(reached.milliseconds, 1)}
            self._output.send("joined", **found, store=self._data_plane.sees_store)
        self._report()
        self._begin()

    def _hold(self, workers: tuple[int, ...]) -> None:
        """Hold these workers from now on: new ones are started, the others leave when the broker lets them."""
        before, self._workers = self._workers, workers
        grace_until = time.monotonic() + self._plan.config.limits.grace_s
        for index in set(before) - set(workers):
            place = Place("worker", index)
            self._supervision.forget(place)
            if place in self._children:
                self._kill_at[place] = (self._children[place].spawn, grace_until)
        self._report()
        if self._data_plane.endpoints is not None:
            for index in sorted(set(workers) - set(before)):
                if Place("worker", index) not in self._children:
                    self._start(Place("worker", index), 0)
        self._end_when_drained()

    def _end_when_drained(self) -> None:
        """A host that holds nothing any more has no part in the run."""
        if self._boot.workers and not self._workers and not self._children:
            self._begin_ending(Manner.CLEAN)

    # the end

    def _begin_ending(self, manner: Manner) -> None:
        if not self._end.begun:
            self._usage.sample(self._children.values())
        self._end.begin(manner, time.monotonic())

    def _finish(self) -> None:
        report = self._end.report()
        ledger = self._data_plane.ledger()
        self._send_logs()
        self._output.send(
            "finished",
            ledger=self._learner_ledger if ledger is None else to_json(ledger),
            peak_pss_mb={role: round(mb, 1) for role, mb in self._usage.peak_pss_mb.items()},
            **report,
        )
        self._output.drain(LAST_WORDS_S)
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup_read, self._wakeup_write):
            os.close(fd)
