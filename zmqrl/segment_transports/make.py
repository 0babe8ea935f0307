"""From the plan to its segment transport."""

from __future__ import annotations

from zmqrl.config.kinds import options_of
from zmqrl.config.plan import RunPlan
from zmqrl.plugins import load
from zmqrl.segment_transports.base import SegmentTransport

BUS = "zmq"
"""The kind whose segments need no other connection than that of the bus."""


def make_transport(plan: RunPlan) -> SegmentTransport:
    """The kind that the plan names. ConfigError when there is none, or it cannot be used."""
    section = plan.config.segment_transport
    cls: type[SegmentTransport] = load(section.kind, "zmqrl.segment_transports", SegmentTransport)
    return cls(options_of(cls.Config, "segment_transport", section.options), plan)
