"""Memory backend of a plan."""

from __future__ import annotations

from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.plugins import load

BUS = "zmq"
"""The kind whose segments need no other connection than that of the bus."""


def make_backend(plan: RunPlan) -> MemoryBackend:
    """The kind that the plan names. ConfigError when there is none, or it cannot be used."""
    section = plan.config.memory_backend
    cls: type[MemoryBackend] = load(section.kind, "zmqrl.memory_backends", MemoryBackend)
    return cls(options_of(cls.Config, "memory_backend", section.options), plan)
