"""The host agent's loop: it moves bytes between processes; what to do is decided by `supervision`."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.agent.children import Child, Nursery
from zmqrl.agent.data_plane import DataPlane
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.usage import SAMPLE_EVERY_S, Usage
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import StoreError
from zmqrl.supervision.ending import CloseEvaluator, Ending, Kill, Manner, ScoreFinal, Terminate
from zmqrl.supervision.process_table import kill, session_members
from zmqrl.supervision.restarts import Action, Died, FailRun, GiveUp, Place, RestartAfter, Start, Supervision, Tick
from zmqrl.types import Notice

LOG = logging.getLogger(__name__)
HURRIED_GRACE_S = 2.5
"""With stdin at its end nobody waits for us: all is over within 3 s."""
ENDING_TICK_S = 0.05
STDIN_READ_BYTES = 65_536
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
        self._stdin_fd = stdin_fd
        self._commands = b""
        self._supervision = Supervision(self._plan.config.restart, self._plan.total_workers)
        self._children: dict[Place, Child] = {}
        self._kill_at: dict[Place, tuple[int, float]] = {}
        self._ending: Ending | None = None
        self._failed = False
        self._usage = Usage()
        self._final_notice: Any = None
        self._learner_ledger: Any = None
        self._ended = 0
        self._killed: list[str] = []
        self._poller = zmq.Poller()
        now = time.monotonic()
        self._clock = _Clock(now, now + SAMPLE_EVERY_S)
        self._wakeup_read, self._wakeup_write = os.pipe()
        self._terminated = False

    def run(self) -> int:
        """Hold the host's processes until all have ended. Returns the exit code."""
        self._catch_sigterm()
        os.set_blocking(self._stdin_fd, False)
        self._poller.register(self._stdin_fd, zmq.POLLIN)
        for socket in self._data_plane.sockets:
            self._poller.register(socket, zmq.POLLIN)
        for place in self._first_places():
            self._start(place, 0)
        while not self._is_over():
            self._turn()
        self._finish()
        return 1 if self._failed else 0

    def _catch_sigterm(self) -> None:
        for fd in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wakeup_write)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._poller.register(self._wakeup_read, zmq.POLLIN)

    def _first_places(self) -> list[Place]:
        """Learner before workers: it publishes version 0 while they start; the evaluator can wait."""
        places = []
        single = self._plan.config.run.mode == "single"
        learner_here = self._boot.host == self._plan.config.learner.host
        if learner_here and not single:
            places.append(Place("broker", 0))
        if learner_here:
            places.append(Place("learner", 0))
        if not single:
            places += [Place("worker", index) for index in self._worker_indexes()]
        if learner_here and self._plan.config.evaluator.episodes > 0:
            places.append(Place("evaluator", 0))
        return places

    def _worker_indexes(self) -> range:
        first = 0
        for host, count in self._plan.workers.items():
            if host == self._boot.host:
                return range(first, first + count)
            first += count
        return range(0)

    def _turn(self) -> None:
        """One poll and what came of it."""
        self._watch_writable()
        ready = dict(self._poller.poll(math.ceil(self._timeout_s() * 1000)))
        if any(socket in ready for socket in self._data_plane.sockets):
            self._take_notices()
        if self._stdin_fd in ready:
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

    def _poll_for_room(self, fd: int, wanted: bool) -> None:
        if wanted:
            self._poller.register(fd, zmq.POLLOUT)
        elif fd in self._poller:
            self._poller.unregister(fd)

    def _timeout_s(self) -> float:
        now = time.monotonic()
        due = [self._clock.heartbeat_at, self._clock.usage_at]
        if self._ending is not None:
            due.append(now + ENDING_TICK_S)
        restart_at = self._supervision.next_due()
        if restart_at is not None:
            due.append(restart_at)
        return max(0.0, min(due) - now)

    def _on_time(self, now: float) -> None:
        if self._terminated:
            self._terminated = False
            self._begin_ending(Manner.CLEAN)
        if self._ending is not None:
            self._end_step(self._ending, now)
        else:
            self._act(self._supervision.handle(Tick(), now))
            self._kill_stalled(now)
        if now >= self._clock.heartbeat_at:
            self._clock.heartbeat_at = now + self._plan.config.limits.heartbeat_s
            self._report()
        if now >= self._clock.usage_at:
            self._clock.usage_at = now + SAMPLE_EVERY_S
            processes = self._usage.sample(self._children.values())
            self._output.send("usage", processes=processes, leases=self._data_plane.leases_in_use())
            for child in self._children.values():
                child.cap_log()

    # weights on their way back

    def _take_notices(self) -> None:
        try:
            notice = self._data_plane.take_notice()
        except StoreError as error:
            LOG.warning("weights not fetched, the next notice tries again: %s", error)
            return
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
        child = self._nursery.start(place, spawn, self._data_plane.fds_of(place.role), self._vector_envs(place))
        self._children[place] = child
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

    def _vector_envs(self, place: Place) -> tuple[int, ...]:
        if place.role != "worker":
            return ()
        if self._plan.config.run.mode == "async":
            return (place.index,)
        return tuple(range(place.index, self._plan.config.env.vector_envs, self._plan.total_workers))

    def _take_events(self, child: Child) -> None:
        for event in child.read_events():
            name = event.pop("event")
            if name == "notice":
                self._data_plane.current = from_json(Notice, event["notice"])
                self._tell_evaluator({"notice": event["notice"]})
                continue
            if name == "worker_state" and event["state"] == "stalled":
                self._dump_and_kill(Place(event["member"], event["place"]), event["spawn"])
            elif name == "fault":
                child.last_fault = event
            elif name == "ended":
                self._final_notice = event.get("notice")
                self._learner_ledger = event.get("ledger")
                self._usage.sample(self._children.values())
            self._output.send(name, role=child.place.role, index=child.place.index, **event)
        if not child.events_open and child.events_fd in self._poller:
            self._poller.unregister(child.events_fd)

    def _dump_and_kill(self, place: Place, spawn: int) -> None:
        """It makes no progress: its stacks go into its log, then supervision starts it again."""
        child = self._children.get(place)
        if child is not None and child.spawn == spawn:
            child.process.send_signal(signal.SIGUSR2)
            self._kill_at[place] = (spawn, time.monotonic() + DUMP_S)

    def _kill_stalled(self, now: float) -> None:
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
            if fd in self._poller:
                self._poller.unregister(fd)
        child.close()
        del self._children[child.place]
        learner_done = child.place.role == "learner" and code == 0
        expected = child.told_to_end or learner_done
        cause = child.cause_of_end()
        if expected:
            self._count_end(child)
        self._output.send(
            "exit",
            role=child.place.role,
            index=child.place.index,
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
        elif self._ending is None:
            self._act(self._supervision.handle(Died(child.place, code, cause), time.monotonic()))
        self._report()

    def _count_end(self, child: Child) -> None:
        if child.killed:
            self._killed.append(f"{self._boot.host}/{child.place} (pid {child.identity.pid})")
        else:
            self._ended += 1

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
        alive = {place.index: child.spawn for place, child in self._children.items() if place.role == "worker"}
        given_up = sorted(place.index for place in self._supervision.given_up if place.role == "worker")
        self._data_plane.report(alive, given_up)

    # the end

    def _read_commands(self) -> None:
        try:
            chunk = os.read(self._stdin_fd, STDIN_READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._poller.unregister(self._stdin_fd)
            self._begin_ending(Manner.HURRIED)
            return
        *lines, self._commands = (self._commands + chunk).split(b"\n")
        for line in lines:
            command = json.loads(line).get("command")
            if command == "stop":
                self._begin_ending(Manner.CLEAN)
            elif command == "kill":
                self._begin_ending(Manner.KILL)

    def _begin_ending(self, manner: Manner) -> None:
        if self._ending is not None and manner in (Manner.CLEAN, Manner.FAILED):
            return
        if self._ending is None:
            self._usage.sample(self._children.values())
        config = self._plan.config
        grace_s = HURRIED_GRACE_S if manner is Manner.HURRIED else config.limits.grace_s
        self._ending = Ending(manner, grace_s, config.evaluator.final_limit_s, time.monotonic())

    def _roles_alive(self) -> set[str]:
        return {place.role for place in self._children}

    def _is_over(self) -> bool:
        return self._ending is not None and self._ending.is_over(self._roles_alive(), time.monotonic())

    def _end_step(self, ending: Ending, now: float) -> None:
        for action in ending.step(self._roles_alive(), now):
            if isinstance(action, ScoreFinal):
                self._score_final()
            elif isinstance(action, CloseEvaluator):
                self._close_evaluator()
            elif isinstance(action, (Terminate, Kill)):
                number = signal.SIGTERM if isinstance(action, Terminate) else signal.SIGKILL
                for child in [c for c in self._children.values() if c.place.role == action.role]:
                    child.send_signal(number)

    def _score_final(self) -> None:
        current = self._data_plane.current
        notice = self._final_notice or (to_json(current) if current is not None else None)
        if notice is None:
            self._close_evaluator()
            return
        self._tell_evaluator({"final": notice})
        self._children[Place("evaluator", 0)].told_to_end = True

    def _close_evaluator(self) -> None:
        evaluator = self._children.get(Place("evaluator", 0))
        if evaluator is None or evaluator.stdin_fd < 0:
            return
        evaluator.told_to_end = True
        if evaluator.stdin_fd in self._poller:
            self._poller.unregister(evaluator.stdin_fd)
        evaluator.close_stdin()

    def _finish(self) -> None:
        strays = self._kill_strays()
        left = [f"{self._boot.host}/{place} (pid {c.identity.pid})" for place, c in self._children.items()]
        ledger = self._data_plane.ledger()
        self._output.send(
            "finished",
            ledger=self._learner_ledger if ledger is None else to_json(ledger),
            peak_pss_mb={role: round(mb, 1) for role, mb in self._usage.peak_pss_mb.items()},
            ended=self._ended,
            killed=[*self._killed, *strays],
            left=left,
        )
        self._output.drain(LAST_WORDS_S)
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup_read, self._wakeup_write):
            os.close(fd)

    def _kill_strays(self) -> list[str]:
        """What a user's env started and left behind: it is in our session, if we lead one."""
        if os.getsid(0) != os.getpid():
            return []
        held = {child.identity.pid for child in self._children.values()} | {os.getpid()}
        strays = [process for process in session_members(os.getpid()) if process.pid not in held and kill(process)]
        return [f"{self._boot.host}/stray (pid {process.pid})" for process in strays]
