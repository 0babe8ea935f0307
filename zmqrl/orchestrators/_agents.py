"""What the kinds of orchestrator share: agents by host, their lines as events, and an end that is verified."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zmqrl.config.plan import Boot
from zmqrl.errors import HostFailed, WireError
from zmqrl.messages import agent as messages
from zmqrl.messages.lines import agent_event, handshake
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.introduction import SENTINEL

KILL_WAIT_S = 3.0


@dataclass(frozen=True)
class Ended:
    """What is known of a host after its agent has gone."""

    killed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass
class Told:
    """What an agent has reported so far; read by the main thread after the reader has seen it."""

    started: dict[tuple[int, int], str] = field(default_factory=dict)
    """(pid, start time) to `host/role-index (pid n)`."""
    finished: messages.Finished | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Its lines that are not events, by reason."""


class Agent(ABC):
    """One host agent, however it was started. `lines` is read by a separate thread, the rest by the main thread."""

    def __init__(self, boot: Boot) -> None:
        self.boot, self.host = boot, boot.host
        self.told = Told()

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """What it writes to stdout, until its end."""

    @abstractmethod
    def introduced(self, handshake: messages.Handshake) -> None:
        """The handshake was received. HostFailed when it cannot participate."""

    @abstractmethod
    def send(self, command: messages.Command) -> None:
        """One line to its stdin; never blocks; no error when it is gone."""

    @abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None while it runs."""

    def silent_end(self, code: int | None) -> HostFailed | None:
        """Why it ended before its handshake, where known."""
        return None

    @abstractmethod
    def kill(self) -> None:
        """It does not end on its own."""

    @abstractmethod
    def end(self) -> Ended:
        """It is gone, and read to its end: whatever is left of its processes is killed, and looked for again."""


class AgentsOrchestrator(Orchestrator):
    """Holds an agent per host; what starts one is the kind's."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self._events: queue.Queue[HostEvent] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def put(self, host: str, event: messages.Event) -> None:
        """Any thread: an event for `monitor`."""
        self._events.put(HostEvent(host, event))

    def adopt(self, agent: Agent) -> None:
        """Any thread: `agent` has been started."""
        self.agents[agent.host] = agent
        reader = threading.Thread(target=self._read, args=(agent,), name=f"events of {agent.host}", daemon=True)
        self._readers.append(reader)
        reader.start()

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        events = []
        try:
            events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def command(self, host: str | None, command: messages.Command) -> None:
        for agent in list(self.agents.values()):
            if host in (None, agent.host):
                agent.send(command)

    def undeploy(self, grace_s: float) -> Teardown:
        agents = list(self.agents.values())
        steps: tuple[tuple[messages.Command, float], ...] = ((messages.Stop(), grace_s), (messages.Kill(), KILL_WAIT_S))
        for command, wait_s in steps:
            running = [agent for agent in agents if agent.wait(0.0) is None]
            for agent in running:
                agent.send(command)
            until = time.monotonic() + wait_s
            for agent in running:
                agent.wait(max(0.0, until - time.monotonic()))
        for agent in agents:
            if agent.wait(0.0) is None:
                agent.kill()
        for reader in self._readers:
            reader.join(KILL_WAIT_S)
        for agent in agents:
            self.read_to_the_end(agent)
        ended = in_parallel([agent.end for agent in agents])
        self.agents = {}
        finished = [agent.told.finished for agent in agents if agent.told.finished is not None]
        killed_by_agents = [who for said in finished for who in said.killed]
        return Teardown(
            ended=sum(said.ended for said in finished),
            killed=(*killed_by_agents, *(who for e in ended for who in e.killed)),
            left=tuple(who for e in ended for who in e.left),
        )

    def read_to_the_end(self, agent: Agent) -> None:
        """An agent has sent its last message, and its connection is open."""
        return

    def _read(self, agent: Agent) -> None:
        """The reader thread: lines to events until the agent's stdout ends."""
        introduced = False
        try:
            for line in agent.lines():
                if not introduced and line.startswith(SENTINEL):
                    introduced = True
                    said = _handshake(agent.host, line.removeprefix(SENTINEL))
                    agent.introduced(said)
                    self.put(agent.host, said)
                elif introduced and line.startswith("{"):
                    self._take_line(agent, line)
        except HostFailed as error:
            self.put(agent.host, messages.HostUnusable(error.cause, error.mend))
        if agent.told.refused:
            self.put(agent.host, messages.LinesRefused(dict(agent.told.refused)))
        code = agent.wait(KILL_WAIT_S)
        why = None if introduced else agent.silent_end(code)
        if why is not None:
            self.put(agent.host, messages.HostUnusable(why.cause, why.mend))
        self.put(agent.host, messages.AgentExited(code, introduced))

    def _take_line(self, agent: Agent, line: str) -> None:
        """A line that is not an event is counted; the counts are reported with each power of two, and at the end."""
        try:
            event = agent_event(line)
        except WireError as error:
            refused = agent.told.refused
            refused[error.reason] += 1
            if refused[error.reason].bit_count() == 1:
                self.put(agent.host, messages.LinesRefused(dict(refused)))
            return
        self._said(agent, event)

    def _said(self, agent: Agent, event: messages.AgentEvent) -> None:
        if not isinstance(event, messages.ProcessReport):
            if isinstance(event, messages.Finished):
                agent.told.finished = event
            self.put(agent.host, event)
            return
        report = event.report
        if isinstance(report, messages.Started):
            who = f"{agent.host}/{event.role}-{event.index} (pid {report.pid})"
            agent.told.started[report.pid, report.start_time] = who
        self._events.put(HostEvent(agent.host, report, event.role, event.index))


def _handshake(host: str, line: str) -> messages.Handshake:
    try:
        return handshake(line)
    except WireError as error:
        mend = f"install this version there: zmqrl setup HOSTS.yaml --limit {host}"
        raise HostFailed(host, f"the first line of the host agent is not a handshake ({error})", mend) from error


def in_parallel(calls: Sequence[Any]) -> list[Any]:
    """Results of bounded calls, each in a separate thread where there are several."""
    if len(calls) <= 1:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
