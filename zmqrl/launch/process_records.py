"""What the launcher knows of one process. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from zmqrl.messages import agent
from zmqrl.types import Role

ProcessState: TypeAlias = Literal["starting", "ready", "down", "failed", "ended", "lost"]
"""failed: it reached its restart limit. lost: with its host."""


@dataclass(frozen=True)
class Relieved:
    """A worker of a sync run has fewer vector envs than the others: the broker has moved them by speed."""

    factor: float
    """Its time for a segment by the median of the others, when they were moved."""
    vector_envs: int


@dataclass(eq=False)
class ProcessRecord:
    """What is known of one process of a host's present agent, until it was removed from the host and has ended."""

    host: str
    role: Role
    index: int
    state: ProcessState = "starting"
    is_ready: bool = False
    """It reported READY, and has neither ended during the run nor been lost since."""
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    wait_fraction: float = 0.0
    episodes: int = 0
    restarts: int = 0
    restarted_at: list[float] = field(default_factory=list)
    """Unix times, as far as they count for the restart limit."""
    last_exit: agent.Exited | None = None
    """The last one that was not expected."""
    spawn: int = 0
    judged: agent.State = "well"
    """How the broker judges this spawn."""
    relieved: Relieved | None = None
    """It has fewer vector envs than others because it is slower."""

    def __str__(self) -> str:
        return f"{self.host}/{self.role}-{self.index}"
