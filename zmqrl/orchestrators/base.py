"""The orchestrator seam: what starts a host agent and communicates with it. Every kind starts the same agent."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from zmqrl.config.kinds import NoKeys
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.config.sections import HostSection
from zmqrl.messages.command import Command
from zmqrl.messages.orchestrator import Event
from zmqrl.orchestrators.access import HostAccess
from zmqrl.types import Role


@dataclass(frozen=True)
class HostEvent:
    """What happened on a host: reported by its agent, or found by the orchestrator."""

    host: str
    event: Event
    role: Role | None = None
    """Role of the process that the event is about; None: the agent."""
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
    """Starts one host agent per host. Called by the launcher's main thread, `command` by any thread.

    The suite `ORCHESTRATOR` of `zmqrl.testing` checks every kind.
    """

    Config: ClassVar[type[Any]] = NoKeys
    """Frozen dataclass of the keys of the kind; in files they are next to `kind` in the section `orchestrator`."""
    returns_checkpoints: ClassVar[bool] = False
    """Whether the checkpoints of a learner on another host are copied to the run directory, during the run and at its
    end. Otherwise such a run needs a store that both hosts see.
    """

    def __init__(self, config: Any, plan: RunPlan | None) -> None:
        """Start nothing yet. ConfigError or HostFailed when the plan cannot be carried out: exit code 2.

        Args:
            config: A `Config`.
            plan: The run. None: hosts of a run that another machine launched.
        """
        del config, plan

    def refusal(self, host: str, section: HostSection) -> str | None:
        """Why a host that the plan does not have cannot be added to the run; None: `deploy` takes its boot.

        The plan of that boot has the section of the host.
        """
        del host, section
        return f"{type(self).__name__} starts the hosts of the plan only"

    @property
    def job(self) -> str | None:
        """The engine's job made for this launcher, which ends with it; `HostAccess.end_job` takes it on any machine."""
        return None

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
        """Any thread: send one line to one host's agent, or to all; never blocks."""

    def reach(self, host: str, addresses: Sequence[str], ports: Sequence[int]) -> tuple[list[str], list[int]]:
        """Addresses and ports at which `host` reaches the listeners of `addresses` and `ports`, or a tunnel to them."""
        return list(addresses), list(ports)

    @abstractmethod
    def undeploy(self, grace_s: float) -> Teardown:
        """End every process of the run and verify it: SIGTERM, wait `grace_s`, SIGKILL, verify. Bounded."""

    @classmethod
    def access(cls, config: Any, run: RunConfig) -> HostAccess:
        """What reaches the hosts of `run` without a run of this machine. `config`: a `Config`."""
        return HostAccess(config, run)
