"""A worker without an arena, over tcp and CURVE, against a real broker: nothing is lost or doubled."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "shared_memory"))
from bus_plans import ROWS, bus_plan
from real_bus import RealBus, until

from zmqrl.config.plan import Boot, Endpoints, Keys, Listen
from zmqrl.memory_backends.zmq import ZmqSink, ZmqSource
from zmqrl.types import SegmentId, Version
from zmqrl.wire.agent_link import AgentLink

TURN_S = 0.05


def pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class FarBus(RealBus):
    """The broker listens on loopback; host b may come in."""

    listen = Listen("127.0.0.1")

    def __init__(self, folder: Path, lost_after_s: float = 20.0) -> None:
        server, far = pair(), pair()
        self.server_keys = Keys(server[0], server_secret=server[1], allowed={far[0]: "b"})
        self.far_keys = Keys(server[0], *far)
        plan = bus_plan("sync", workers=1, vector_envs=1, leases=2, slots=6)
        limits = replace(plan.config.limits, lost_after_s=lost_after_s)
        super().__init__(replace(plan, config=replace(plan.config, limits=limits)), folder)
        self.far_agent = AgentLink(self.far, "b", self.far_keys)
        self._ends.append(self.far_agent)

    def boot(self, role: str, index: int = 0, spawn: int = 0, inherit: bool = False) -> Boot:
        near = super().boot(role, index, spawn, inherit)
        return replace(near, keys=self.server_keys, listen=self.listen) if role == "broker" else near

    def start_broker(self):  # type: ignore[no-untyped-def]
        child = super().start_broker()
        line = child.stdout.readline() if False else None
        del line
        return child

    def far_sink(self, spawn: int = 0) -> ZmqSink:
        self._ends.append(ZmqSink(Boot("worker", 0, spawn, "b", self.plan, self.far, keys=self.far_keys)))
        return self._ends[-1]  # type: ignore[no-any-return]
