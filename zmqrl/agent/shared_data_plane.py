"""The data plane of sync and async: one arena on the learner's host, one weights buffer per host, one link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zmqrl.agent.data_plane import DataPlane
from zmqrl.agent.weights_relay import WeightsRelay
from zmqrl.config.plan import Endpoints, RunPlan
from zmqrl.data_stores.make import make_store
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Ledger, Notice
from zmqrl.wire.agent_link import AgentLink


class SharedDataPlane(DataPlane):
    """Made by the agent before it starts anything: the descriptors are inherited."""

    def __init__(self, plan: RunPlan, endpoints: Endpoints, host: str) -> None:
        """ArenaTooLarge when the arena does not fit; nothing is left open then."""
        self._arena = Arena.create(plan) if host == plan.config.learner.host else None
        self._relay = WeightsRelay(make_store(plan))
        self._link = AgentLink(endpoints, host)

    @property
    def sockets(self) -> Sequence[Any]:
        return self._link.sockets

    def take_notice(self) -> Notice | None:
        taken = self._relay.take(self._link.notices())
        if taken is not None:
            self.current = taken
        return taken

    def fds_of(self, role: str) -> Mapping[str, int]:
        fds: dict[str, int] = {}
        if self._arena is not None and self._arena.fd is not None and role != "evaluator":
            fds["arena"] = self._arena.fd
        if role == "worker":
            fds["weights"] = self._relay.fd
        return fds

    def report(self, alive: Mapping[int, int], given_up: Sequence[int]) -> None:
        self._link.report(dict(alive), list(given_up))

    def ledger(self) -> Ledger | None:
        return None if self._arena is None else self._arena.ledger()

    def leases_in_use(self) -> int | None:
        return None if self._arena is None else self._arena.open_slots()

    def close(self) -> None:
        self._link.close()
        self._relay.close()
        if self._arena is not None:
            self._arena.close()
