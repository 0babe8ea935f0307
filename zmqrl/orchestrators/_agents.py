"""What the kinds of orchestrator share: agents by host, their lines as events, and an end that is verified."""

from __future__ import annotations

import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zmqrl.config.plan import Boot
from zmqrl.errors import HostFailed, WireError
from zmqrl.logs.lines import AGENT_EVENTS, event_of, handshake_of
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.introduction import SENTINEL

KILL_WAIT_S = 3.0
LAUNCHER = "the launcher"
"""Who refused, in an event `refused` that no agent sent."""


@dataclass(frozen=True)
class Ended:
    """What is known of a host after its agent has gone."""

    killed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass
class Told:
    """What an agent has said so far; read by the main thread after the reader has seen it."""

    started: dict[tuple[int, int], str] = field(default_factory=dict)
    """(pid, start time) to `host/role-index (pid n)`."""
    finished: Mapping[str, Any] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """Its lines that are no events, by reason."""


class Agent(ABC):
    """One host agent, however it was started. `lines` is read by a thread of its own, the rest by the main thread."""

    def __init__(self, boot: Boot) -> None:
        self.boot, self.host = boot, boot.host
        self.told = Told()

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """What it writes to stdout, until its end."""

    @abstractmethod
    def introduced(self, sentinel: Mapping[str, Any]) -> None:
        """It has said who it is. HostFailed when it cannot take part."""

    @abstractmethod
    def send(self, data: Mapping[str, Any]) -> None:
        """One JSON line to its stdin; never blocks; no error when it is gone."""

    @abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None while it runs."""

    def silent_end(self, code: int | None) -> HostFailed | None:
        """Why it ended before it said who it is, where that is known."""
        return None

    @abstractmethod
    def kill(self) -> None:
        """It does not end by itself."""

    @abstractmethod
    def end(self) -> Ended:
        """It is gone, and read to its end: whatever is left of its processes is killed, and looked for again."""


def json_line(data: Mapping[str, Any]) -> bytes:
    """A line of the protocol."""
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class AgentsOrchestrator(Orchestrator):
    """Holds an agent per host; what starts one is the kind's."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self._events: queue.Queue[HostEvent] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def put(self, host: str, event: str, /, **data: Any) -> None:
        """Any thread: an event for `monitor`."""
        self._events.put(HostEvent(host, event, data))

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

    def command(self, host: str | None, command: Mapping[str, Any]) -> None:
        for agent in list(self.agents.values()):
            if host in (None, agent.host):
                agent.send(command)

    def undeploy(self, grace_s: float) -> Teardown:
        agents = list(self.agents.values())
        for command, wait_s in (({"command": "stop"}, grace_s), ({"command": "kill"}, KILL_WAIT_S)):
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
        finished = [agent.told.finished for agent in agents]
        killed_by_agents = [who for said in finished for who in said.get("killed", ())]
        return Teardown(
            ended=sum(int(said.get("ended", 0)) for said in finished),
            killed=(*killed_by_agents, *(who for e in ended for who in e.killed)),
            left=tuple(who for e in ended for who in e.left),
        )

    def read_to_the_end(self, agent: Agent) -> None:
        """An agent has said its last word, and its connection still holds."""
        return

    def _read(self, agent: Agent) -> None:
        """The reader thread: lines to events until the agent's stdout ends."""
        introduced = False
        try:
            for line in agent.lines():
                if not introduced and line.startswith(SENTINEL):
                    introduced = True
                    sentinel = _handshake(agent.host, line.removeprefix(SENTINEL))
                    agent.introduced(sentinel)
                    self.put(agent.host, "agent", **sentinel)
                elif introduced and line.startswith("{"):
                    self._take_line(agent, line)
        except HostFailed as error:
            self.put(agent.host, "host_failed", cause=error.cause, mend=error.mend)
        if agent.told.refused:
            self.put(agent.host, "refused", by=LAUNCHER, counts=dict(agent.told.refused))
        code = agent.wait(KILL_WAIT_S)
        why = None if introduced else agent.silent_end(code)
        if why is not None:
            self.put(agent.host, "host_failed", cause=why.cause, mend=why.mend)
        self.put(agent.host, "agent_exit", code=code, introduced=introduced)

    def _take_line(self, agent: Agent, line: str) -> None:
        """A line that is no event is counted; the counts are reported with each power of two, and at the end."""
        try:
            name, data = event_of(line, AGENT_EVENTS)
        except WireError as error:
            refused = agent.told.refused
            refused[error.reason] += 1
            if refused[error.reason].bit_count() == 1:
                self.put(agent.host, "refused", by=LAUNCHER, counts=dict(refused))
            return
        self._said(agent, name, data)

    def _said(self, agent: Agent, name: str, data: dict[str, Any]) -> None:
        if name == "started":
            who = f"{agent.host}/{data['role']}-{data['index']} (pid {data['pid']})"
            agent.told.started[int(data["pid"]), int(data["start_time"])] = who
        elif name == "finished":
            agent.told.finished = data
        self._events.put(HostEvent(agent.host, name, data))


def _handshake(host: str, line: str) -> dict[str, Any]:
    try:
        return handshake_of(line)
    except WireError as error:
        mend = f"install this version there: zmqrl setup HOSTS.yaml --limit {host}"
        raise HostFailed(host, f"the first line of its agent is not a handshake ({error})", mend) from error


def in_parallel(calls: Sequence[Any]) -> list[Any]:
    """Results of bounded calls, each in a thread of its own where there are several."""
    if len(calls) <= 1:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
