"""The orchestrator seam: what starts a host agent and speaks with it. Both kinds start the same agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zmqrl.config.plan import RunPlan


@dataclass(frozen=True)
class HostEvent:
    """One JSON line of a host agent: `event` names it, `host` says whose; see docs/protocol.md."""

    host: str
    event: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Teardown:
    """What `undeploy` verified."""

    ended: int
    """Processes that ended by themselves within the grace."""
    killed: tuple[str, ...] = ()
    """`host/role-index (pid n)` of those that had to be killed."""
    left: tuple[str, ...] = ()
    """Those still there: the launcher's exit code is then 3."""


class Orchestrator(ABC):
    """Starts one host agent per host. Called by the launcher's main thread.

    Contract tests in `tests/contracts/test_orchestrators.py` run over every kind.
    """

    @abstractmethod
    def deploy(self, plan: RunPlan) -> None:
        """Start the agents of this orchestrator's hosts; returns when they are started, not when ready."""

    @abstractmethod
    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        """Events since the last call; waits up to `timeout_s` for the first. An agent's end is event `agent_exit`."""

    @abstractmethod
    def command(self, host: str | None, command: Mapping[str, Any]) -> None:
        """Send one JSON line to one host's agent, or to all; never blocks."""

    @abstractmethod
    def undeploy(self, grace_s: float) -> Teardown:
        """End every process of the run and verify it: ask, wait `grace_s`, kill, look again. Bounded."""
