"""What the kinds of orchestrator share: agents by host, their lines as events, and an end that is verified."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zmqrl.config.plan import RunPlan
from zmqrl.errors import HostFailed, WireError, as_host_failed
from zmqrl.messages.agent import AgentEvent, HostFinished, LeaseLost, ProcessReport, Started, Unreachable, Warned
from zmqrl.messages.command import Command, KillAll, Stop
from zmqrl.messages.lines import agent_event, handshake
from zmqrl.messages.orchestrator import AgentExited, Event, Handshake, HostUnusable, LinesRefused
from zmqrl.orchestrators.agent import KILL_WAIT_S, Agent, HostEnd
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.orchestrators.host_start import INSTALL
from zmqrl.ssh.shell import after_mark


class AgentsOrchestrator(Orchestrator, ABC):
    """Holds an agent per host; what starts one is the kind's."""

    def __init__(self, config: Any, plan: RunPlan | None) -> None:
        super().__init__(config, plan)
        self.agents: dict[str, Agent] = {}
        self._events: queue.Queue[HostEvent] = queue.Queue()
        self._threads: list[threading.Thread] = []
        """That run: readers of agents, and releases of those that were replaced."""
        self._threads_lock = threading.Lock()
        self._stopped: set[str | None] = set()
        """Hosts to which a stop was sent, whether they have an agent or not; None: to all."""

    def warn(self, host: str, text: str) -> None:
        """Any thread: a text for the user."""
        self.put(host, Warned(text))

    def put(self, host: str, event: Event) -> None:
        """Any thread: an event for `monitor`."""
        self._events.put(HostEvent(host, event))

    def adopt(self, agent: Agent) -> None:
        """Any thread: `agent` has been started. One that its host had before is released."""
        replaced = self.agents.get(agent.host)
        self.agents[agent.host] = agent
        if self._stopped & {None, agent.host}:
            agent.send(Stop())
        self._start(f"events of {agent.host}", partial(self._read, agent))
        if replaced is not None:
            self._start(f"release of {agent.host}", replaced.release)

    def _start(self, name: str, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        with self._threads_lock:
            self._threads = [*(running for running in self._threads if running.is_alive()), thread]

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        self._give_up_on_silent()
        events = []
        try:
            events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _give_up_on_silent(self) -> None:
        for agent in list(self.agents.values()):
            failure = agent.overdue()
            if failure is not None:
                self.put(agent.host, HostUnusable(failure.cause, failure.fix))
                agent.terminate()

    def command(self, host: str | None, command: Command) -> None:
        """The first error of an agent is raised once all were sent the command: it may be a lease."""
        if isinstance(command, Stop):
            self._stopped.add(host)
        errors = []
        for agent in list(self.agents.values()):
            if host in (None, agent.host):
                try:
                    agent.send(command)
                except Exception as error:  # noqa: BLE001 - of any kind of agent
                    errors.append(error)
        if errors:
            raise errors[0]

    def undeploy(self, grace_s: float) -> Teardown:
        agents = list(self.agents.values())
        without_boot = [agent for agent in agents if agent.refuse_boot()]
        for agent in without_boot:
            if agent.wait(0.0) is None:
                agent.terminate()
        with_boot = [agent for agent in agents if agent not in without_boot]
        for waited, command, wait_s in ((with_boot, Stop(), grace_s), (agents, KillAll(), KILL_WAIT_S)):
            running = [agent for agent in waited if agent.wait(0.0) is None]
            for agent in running:
                agent.send(command)
            until = time.monotonic() + wait_s
            for agent in running:
                agent.wait(max(0.0, until - time.monotonic()))
        for agent in agents:
            if agent.wait(0.0) is None:
                agent.kill()
        for thread in self._threads:
            thread.join(KILL_WAIT_S)
        for agent in agents:
            self.read_to_the_end(agent)
        ended = in_parallel([partial(_end, agent) for agent in agents])
        self.agents = {}
        finished = [agent.progress.finished for agent in agents if agent.progress.finished is not None]
        killed_by_agents = [who for done in finished for who in done.killed]
        return Teardown(
            ended=sum(done.ended for done in finished),
            killed=(*killed_by_agents, *(who for e in ended for who in e.killed)),
            left=tuple(who for e in ended for who in e.left),
        )

    def read_to_the_end(self, agent: Agent) -> None:
        """An agent has sent its last message, and its connection is open."""
        return

    def _read(self, agent: Agent) -> None:
        """The reader thread: lines to events until the agent's stdout ends."""
        has_handshake = False
        try:
            for line in agent.pipe.lines():
                text = None if has_handshake else after_mark(line, SENTINEL)
                if text is not None:
                    has_handshake = True
                    received = _handshake(agent.host, text)
                    agent.on_handshake(received)
                    self.put(agent.host, received)
                elif not has_handshake:
                    agent.progress.output.append(line)
                elif line.startswith("{"):
                    self._take_line(agent, line)
        except HostFailed as error:
            self.put(agent.host, HostUnusable(error.cause, error.fix))
        if agent.progress.refused:
            self.put(agent.host, LinesRefused(dict(agent.progress.refused)))
        code = agent.wait(KILL_WAIT_S)
        why = agent.cut_off() if has_handshake else agent.silent_end(code)
        if self._is_superseded(agent):  # perhaps meanwhile
            return
        if why is not None:
            self.put(agent.host, HostUnusable(why.cause, why.fix))
        self.put(agent.host, AgentExited(code, has_handshake))

    def _take_line(self, agent: Agent, line: str) -> None:
        """A line that is not an event is counted; the counts are reported with each power of two, and at the end."""
        try:
            event = agent_event(line)
        except WireError as error:
            refused = agent.progress.refused
            refused[error.reason] += 1
            if refused[error.reason].bit_count() == 1:
                self.put(agent.host, LinesRefused(dict(refused)))
            return
        self._on_event(agent, event)

    def _is_superseded(self, agent: Agent) -> bool:
        """Another agent of its host is or was started: its end is not the end of the host's part."""
        return agent.is_released or self.agents.get(agent.host, agent) is not agent

    def _on_event(self, agent: Agent, event: AgentEvent) -> None:
        if self._is_superseded(agent) and isinstance(event, LeaseLost | Unreachable):
            return
        if not isinstance(event, ProcessReport):
            if isinstance(event, HostFinished):
                agent.progress.finished = event
            self.put(agent.host, event)
            return
        report = event.report
        if isinstance(report, Started):
            who = f"{agent.host}/{event.role}-{event.index} (pid {report.pid})"
            agent.progress.started[report.pid, report.start_time] = who
        self._events.put(HostEvent(agent.host, report, event.role, event.index))


def _end(agent: Agent) -> HostEnd:
    """An error of one host leaves the others verified."""
    try:
        with as_host_failed(agent.host):
            return agent.end()
    except HostFailed as error:
        return HostEnd(left=(f"{agent.host}/? (could not be verified: {error.cause})",))


def _handshake(host: str, line: str) -> Handshake:
    try:
        return handshake(line)
    except WireError as error:
        fix = INSTALL.format(host=host)
        raise HostFailed(host, f"the first line of the host agent is not a handshake ({error})", fix) from error


def in_parallel(calls: Sequence[Any], most: int | None = None) -> list[Any]:
    """Results of bounded calls, each in a separate thread where there are several. `most`: at once; None: all."""
    if len(calls) <= 1:
        return [call() for call in calls]
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(most or len(calls)) as pool:
            futures = [pool.submit(call) for call in calls]
    except RuntimeError:  # the interpreter is about to exit, and starts no thread
        return [call() for call in calls]
    return [future.result() for future in futures]
