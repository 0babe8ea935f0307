"""The orchestrator seam: what starts a host agent and communicates with it. Every kind starts the same agent."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zmqrl.config.plan import Boot
from zmqrl.messages.agent import Command, Event
from zmqrl.types import Role


@dataclass(frozen=True)
class HostEvent:
    """What happened on a host: reported by its agent, or found by the orchestrator."""

    host: str
    event: Event
    role: Role | None = None
    """Of the process that it is about; None: the agent."""
    index: int | None = None
    at: float = field(default_factory=time.time, compare=False)
    """Unix time at which it was read."""

    @property
    def process(self) -> tuple[str, int]:
        """Role and index of the process that it is about, the host agent's own where it is about none."""
        return self.role or "agent", self.index or 0

    @property
    def where(self) -> str:
        """`host/role-index`."""
        role, index = self.process
        return f"{self.host}/{role}-{index}"


@dataclass(frozen=True)
class Teardown:
    """What `undeploy` verified."""

    ended: int
    """Processes that ended on their own within the grace."""
    killed: tuple[str, ...] = ()
    """`host/role-index (pid n)` of those that had to be killed."""
    left: tuple[str, ...] = ()
    """Processes that remain, and unreachable hosts: the launcher's exit code is then 3."""


class Orchestrator(ABC):
    """Starts one host agent per host. Called by the launcher's main thread.

    Contract tests in `tests/contracts/test_orchestrators.py` run over every kind.
    """

    @abstractmethod
    def deploy(self, boots: Mapping[str, Boot]) -> None:
        """Begin to start an agent on each host; never waits for a remote one.

        The result of each is an event: `Handshake` or `HostUnusable`.
        """

    @abstractmethod
    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        """Events since the last call; waits up to `timeout_s` for the first. An agent's end is `AgentExited`."""

    @abstractmethod
    def command(self, host: str | None, command: Command) -> None:
        """Send one line to one host's agent, or to all; never blocks."""

    def reach(self, host: str, addresses: Sequence[str], ports: Sequence[int]) -> tuple[list[str], list[int]]:
        """Addresses and ports at which `host` reaches the listeners of `addresses` and `ports`, or a tunnel to them."""
        return list(addresses), list(ports)

    @abstractmethod
    def undeploy(self, grace_s: float) -> Teardown:
        """End every process of the run and verify it: SIGTERM, wait `grace_s`, SIGKILL, verify. Bounded."""
