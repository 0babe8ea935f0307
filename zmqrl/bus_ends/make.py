"""From the plan to its experience stream: how the processes of a run open it."""

from __future__ import annotations

from zmqrl.bus_ends.base import MemoryBackend
from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.plugins import load


def make_backend(plan: RunPlan) -> MemoryBackend:
    """The kind that the plan names. ConfigError when there is none."""
    section = plan.config.memory_backend
    cls: type[MemoryBackend] = load(section.kind, "zmqrl.bus_ends", MemoryBackend)
    return cls(options_of(cls.Config, "memory_backend", section.options), plan)
