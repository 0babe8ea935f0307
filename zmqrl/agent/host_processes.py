"""The life of one host's processes: started, judged, reaped, started again, ended.

What is done about a death is decided by `supervision.restarts`, how to end by `agent.shutdown_policy`.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Container, Iterator

from msgspec import structs

from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.data_plane import DataPlane
from zmqrl.agent.orphans import Orphans
from zmqrl.agent.process_events import ProcessEvents
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.agent.shutdown import Shutdown
from zmqrl.agent.shutdown_policy import ShutdownMode
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, TcpListen
from zmqrl.messages import agent, command, process
from zmqrl.messages.bus import Hanging, HostReport
from zmqrl.supervision.restarts import Action, Died, FailRun, ProcessSlot, Start, Supervision, Tick
from zmqrl.types import Ledger, Notice
from zmqrl.wire.sockets import own_addresses

SHUTDOWN_TICK_S = 0.05
DUMP_S = 0.5
"""What faulthandler may take to write the stacks of a stalled process."""
NOT_STARTED = 126
"""Exit code of a process that was not started, as a shell reports a command that it cannot execute."""
BROKER, LEARNER, EVALUATOR = ProcessSlot("broker", 0), ProcessSlot("learner", 0), ProcessSlot("evaluator", 0)


class HostProcesses:
    """Called by the agent's loop alone, which polls what `readable` and `writable` name. Nothing here waits."""

    def __init__(self, boot: Boot, spawner: ProcessSpawner, data_plane: DataPlane, events: ProcessEvents) -> None:
        self._boot, self._plan, self._spawner = boot, boot.plan, spawner
        self._data_plane, self._events = data_plane, events
        self._supervision = Supervision(self._plan.config.restart, boot.workers, boot.is_alone)
        self._children: dict[ProcessSlot, ChildProcess] = {}
        self._workers = tuple(boot.workers)
        self._stays = not boot.workers
        """Whether the agent stays when it has no processes."""
        self._shutdown = Shutdown(boot, self._children)
        self._orphans = Orphans(self._plan.config.limits.grace_s, self._children)
        self._learner_ledger: Ledger | None = None
        self._addresses: agent.BrokerAddresses | None = None
        """Addresses of the broker, as reported last."""
        self.refused: Counter[str] = Counter()
        """Lines of processes that are not events, by reason."""
        self.failed = False
        """Whether the run has failed."""
        self.acting = ""
        """What acting computes here, as a digest, once it is known."""

    @property
    def has_ready(self) -> bool:
        """Whether one of the processes has reported that it is ready."""
        return any(child.ready for child in self._children.values())

    # what the loop polls, and what came of it

    def readable(self) -> Iterator[int]:
        """Descriptors with news: of a death, of an event."""
        for child in self._children.values():
            yield child.pidfd
            if child.events_open:
                yield child.events_fd

    def writable(self) -> Iterator[int]:
        """Descriptors that a line waits for."""
        return (child.stdin_fd for child in self._children.values() if child.has_unwritten)

    def handle(self, ready: Container[int]) -> None:
        """Read, reap and write the descriptors in `ready`."""
        for child in list(self._children.values()):
            if child.events_fd in ready:
                self._take_events(child)
            if child.pidfd in ready:
                self._reap(child)
            elif child.stdin_fd in ready:
                child.flush()

    def next_due(self, now: float) -> float | None:
        """When `step` has something to do again, in monotonic seconds."""
        return now + SHUTDOWN_TICK_S if self.ending else self._supervision.next_due()

    def step(self, now: float) -> None:
        """What is due: restarts, the next step of an end, a kill that was put off."""
        self._orphans.step(now)
        if self.ending:
            self._shutdown.step(self._data_plane.current, now)
        else:
            self._act(self._supervision.handle(Tick(), now))
        for child in self._children.values():
            if now >= child.kill_at:
                child.kill_at = math.inf
                child.process.kill()

    # what the launcher and the broker want

    def begin(self) -> None:
        """Start this host's part. Learner before workers: it publishes version 0 while they start."""
        slots, config = [ProcessSlot("worker", index) for index in self._workers], self._plan.config
        if self._boot.host == config.learner.host:
            before = [LEARNER] if config.mode.in_process else [BROKER, LEARNER]
            slots = [*before, *slots, *([EVALUATOR] if config.evaluator.episodes > 0 else [])]
        for slot in slots:
            self._start(slot, 0)

    def set_workers(self, workers: tuple[int, ...], stays: bool = False) -> None:
        """Assign these workers: new ones are started, the others leave when the broker permits it.

        `stays`: the agent does not end without workers.
        """
        before, self._workers = self._workers, workers
        self._stays = stays or self._boot.host == self._plan.config.learner.host
        self._supervision.set_workers(workers)
        grace_until = time.monotonic() + self._plan.config.limits.grace_s
        for index in set(before) - set(workers):
            if (child := self._children.get(ProcessSlot("worker", index))) is not None:
                child.kill_at = min(child.kill_at, grace_until)
        self.report()
        if self._data_plane.endpoints is not None:
            for index in sorted(set(workers) - set(before)):
                if ProcessSlot("worker", index) not in self._children:
                    self._start(ProcessSlot("worker", index), 0)
        self._end_when_drained()

    def notify(self, notice: Notice) -> None:
        """There are new weights."""
        for child in self._children.values():
            child.wake()
        self._notify_evaluator(notice)

    def end_hanging(self, hanging: Hanging) -> None:
        """A child that hangs is killed, its stacks in its log if it can still write them; supervision replaces it.

        A worker that is silent and was not reaped is stopped, or cannot run: its slots come back with its death alone.
        """
        slot, limits = ProcessSlot(hanging.role, hanging.index), self._plan.config.limits
        child, kill_at = self._children.get(slot), time.monotonic() + DUMP_S
        if child is None or child.spawn != hanging.spawn or child.kill_at <= kill_at:
            return
        stalled_after = f"limits.stalled_after_s ({limits.stalled_after_s:g} s)"
        lost_after = f"limits.lost_after_s ({limits.lost_after_s:g} s)" if slot.role == "worker" else stalled_after
        stalled = hanging.state == "stalled"
        why = f"stalled: no progress for {stalled_after}" if stalled else f"hangs: no heartbeat for {lost_after}"
        child.last_fault = process.ProcessFault(f"{why}, killed", {}, [])
        child.process.send_signal(signal.SIGUSR2)
        child.kill_at = kill_at

    def report(self) -> None:
        """Report the live processes to the broker; it takes leases back only from processes that were reaped."""
        children = {slot.index: child for slot, child in self._children.items() if slot.role == "worker"}
        alive = {index: child.spawn for index, child in children.items()}
        ready = [index for index, child in children.items() if child.ready]
        failed = sorted(slot.index for slot in self._supervision.failed if slot.role == "worker")
        assigned = [index for index in self._workers if index not in failed]
        workers = [] if self.ending and not alive else assigned
        self._data_plane.report(HostReport(self._boot.host, alive, ready, failed, workers, self.acting))

    def report_addresses(self) -> None:
        """Report to the launcher where other hosts reach the broker, once this host has other addresses."""
        if self._addresses is not None and (addresses := own_addresses()) != self._addresses.addresses:
            self._addresses = structs.replace(self._addresses, addresses=addresses)
            self._events.listening(self._addresses)

    def measure(self) -> None:
        """Report the resource use of the processes, and keep their logs from growing without end."""
        self._events.usage(self._children.values(), self._data_plane.arena_usage())
        for child in self._children.values():
            child.cap_log()

    # the end

    @property
    def ending(self) -> bool:
        """Whether the host is ending: nothing is started any more."""
        return self._shutdown.begun

    def end(self, shutdown_mode: ShutdownMode) -> None:
        """End from now on; a harder mode replaces a softer one."""
        if not self.ending:
            self._events.sample(self._children.values())
        self._shutdown.begin(shutdown_mode, time.monotonic())

    def is_over(self, now: float) -> bool:
        """Whether all have ended, or nothing more can be done."""
        return self._shutdown.is_over(now)

    def finish(self) -> None:
        """Once it is over: kill what was left behind, and report how all of it ended."""
        self._spawner.close()
        ledger = self._data_plane.ledger() or self._learner_ledger
        self._events.finished(self._shutdown.report(*self._orphans.end_all(), ledger))

    def _end_when_drained(self) -> None:
        """A host without workers and processes is not part of the run, unless it is to return."""
        if not self._stays and not self._workers and not self._children:
            self.end(ShutdownMode.CLEAN)

    # one process

    def _start(self, slot: ProcessSlot, spawn: int) -> None:
        if self.ending:  # a start before this one has failed for the last time
            return
        boot = self._data_plane.boot_of(slot.role, self._boot)
        try:
            child = self._spawner.start(boot, slot, spawn, self._data_plane.fds_of(slot.role))
        except OSError as error:
            self._not_started(slot, f"cannot be started: {error}")
            return
        self._children[slot] = child
        self._events.started(child)
        if slot == EVALUATOR and self._data_plane.current is not None:
            child.write_line(command.Evaluate(self._data_plane.current, final=False))
        self.report()

    def _not_started(self, slot: ProcessSlot, cause: str) -> None:
        """No memory, process or descriptor may be left at the moment: the restart limit decides, as after a death."""
        self._events.not_started(slot, NOT_STARTED, cause)
        self._act(self._supervision.handle(Died(slot, NOT_STARTED, cause), time.monotonic()))
        self.report()

    def _notify_evaluator(self, notice: Notice) -> None:
        evaluator = self._children.get(EVALUATOR)
        if evaluator is not None and evaluator.stdin_fd >= 0:
            evaluator.write_line(command.Evaluate(notice, final=False))

    def _take_events(self, child: ChildProcess) -> None:
        events = child.read_events()
        self.refused.update(child.refused)
        child.refused.clear()
        for event in events:
            if isinstance(event, process.NewVersion):
                self._data_plane.current = event.notice
                self._notify_evaluator(event.notice)
            elif isinstance(event, process.BrokerListening):
                self._listening(event)
            else:
                child.note(event)
                self._follow(child, event)
                self._events.forward(child, event)

    def _listening(self, event: process.BrokerListening) -> None:
        if self._boot.listen is not None:
            # a broker that is started again has to be where all processes look for it
            self._boot = replace(self._boot, listen=TcpListen(self._boot.listen.address, event.ports))
            token = self._data_plane.token
            self._addresses = agent.BrokerAddresses(event.ports, own_addresses(), token, event.serial)
            self._events.listening(self._addresses)

    def _follow(self, child: ChildProcess, event: agent.Report) -> None:
        match event:
            case process.Ready():
                self._events.sample([child])
            case process.WorkerRates() if event.env_steps:
                self._supervision.delivered(child.slot)
            case process.Writing():
                self._shutdown.extend(child.slot.role, time.monotonic())
            case process.LearnerEnded():
                self._shutdown.final_notice, self._learner_ledger = event.notice, event.ledger
                self._events.sample(self._children.values())

    def _reap(self, child: ChildProcess) -> None:
        self._take_events(child)
        slot, code = child.slot, child.process.wait()
        child.close()
        del self._children[slot]
        learner_done = slot.role == "learner" and code == 0 and child.reported_end
        drained = slot.role == "worker" and slot.index not in self._workers
        child.expected_to_end = expected = child.expected_to_end or learner_done or drained
        if expected:
            self._shutdown.count(child)
        self._events.exited(child, expected)
        if learner_done:
            self.end(ShutdownMode.CLEAN)
        elif not self.ending and not expected:
            died = Died(slot, code, child.cause_of_end(), child.point_of_end())
            self._act(self._supervision.handle(died, time.monotonic()))
        if not self.ending:  # at the end `finish` kills and reports all that is left
            self._orphans.end(child)
        self.report()
        self._end_when_drained()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            self._events.decided(action)
            if isinstance(action, Start):
                self._start(action.slot, action.spawn)
            elif isinstance(action, FailRun):
                self.failed = True
                self.end(ShutdownMode.FAILED)
