"""What the host agent holds of the data plane: the arena, the weights buffer, the link to the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zmqrl.agent.weights_relay import WeightsRelay
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Endpoints, Keys, RunPlan
from zmqrl.data_stores.make import is_shared, make_store
from zmqrl.messages.bus import Hanging, HostReport
from zmqrl.messages.command import Join
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import AllowList, ArenaUsage, Ledger, Notice
from zmqrl.wire.agent_link import AgentLink
from zmqrl.wire.probe import FirstAddress


class DataPlane:
    """The agent's view of it. A kind overrides what it has: without an arena, weights and a link there is nothing."""

    current: Notice | None = None
    """The newest version that this host knows."""
    endpoints: Endpoints | None = None
    """Where this host's processes find the broker; None until `join`."""

    token: str | None = None
    """What other hosts look for in the store."""
    sees_store = True
    """Whether versions are read from the store; else they are requested from the broker."""

    @property
    def shutdown_cause(self) -> str | None:
        """Why this host's part ends, once the broker has reported that it does."""
        return None

    @property
    def hanging(self) -> Sequence[Hanging]:
        """Processes of this host that hang, as the broker reported last; `take_notice` reads its reports."""
        return ()

    @property
    def received(self) -> int | None:
        """Grows with each message of the broker; None where the broker is a child of this agent."""
        return None

    @property
    def refused(self) -> Counter[str]:
        """Messages of the broker that were refused, by reason."""
        return Counter()

    def join(self, join: Join) -> FirstAddress | None:
        """Find the broker; waits for some seconds. DeadlineExceeded when no address leads to it."""
        raise NotImplementedError("this host has the broker")

    @property
    def sockets(self) -> Sequence[Any]:
        """ZeroMQ sockets to poll; readable means `take_notice`."""
        return ()

    def take_notice(self) -> Notice | None:
        """Read the link and fetch a new version; None when there is none. StoreError when it cannot be fetched."""
        return None

    def boot_of(self, role: str, boot: Boot) -> Boot:
        """`boot` with what a process of `role` needs to reach the broker. The endpoints are known by then."""
        assert self.endpoints is not None, "processes start after the broker's endpoints are known"
        del role
        return replace(boot, endpoints=self.endpoints)

    def fds_of(self, role: str) -> Mapping[str, int]:
        """The shared descriptors that a process of `role` inherits."""
        return {}

    def report(self, report: HostReport) -> None:
        """Report to the broker the live processes and the workers assigned to this host."""
        return

    def allow(self, allowed: AllowList) -> None:
        """Who may participate from other hosts, from now on."""
        return

    def ledger(self) -> Ledger | None:
        """The current stream records of the arena; None without an arena."""
        return None

    def arena_usage(self) -> ArenaUsage | None:
        """What the arena is used for; None without an arena."""
        return None

    def close(self) -> None:
        """Give everything back."""
        return


class NoDataPlane(DataPlane):
    """single: the learner holds everything in its own memory and sends notices as events."""

    endpoints = Endpoints()


class SharedDataPlane(DataPlane):
    """Made by the agent before it starts anything: the descriptors are inherited."""

    def __init__(self, plan: RunPlan, endpoints: Endpoints, keys: Keys | None = None, shared: bool = False) -> None:
        """Nothing is left open after an error.

        `keys`: this host's pair, which the broker shows to other hosts; None: the broker listens on loopback only.
        `shared`: other hosts participate.

        Raises:
            ArenaTooLarge: The arena does not fit.
        """
        self.endpoints, self._keys = endpoints, keys
        self._allowed = AllowList()
        self._store, self._run_id = make_store(plan), plan.run_id
        self.token = self._store.leave_token(plan.run_id) if shared and is_shared(plan.config.store) else None
        self._arena = Arena.create(plan)
        self._relay = WeightsRelay(self._store)
        self._link = AgentLink(endpoints)

    @property
    def sockets(self) -> Sequence[Any]:
        return self._link.sockets

    @property
    def hanging(self) -> Sequence[Hanging]:
        return self._link.hanging

    @property
    def refused(self) -> Counter[str]:
        return self._link.refused

    def take_notice(self) -> Notice | None:
        taken = self._relay.take(self._link.notices())
        if taken is not None:
            self.current = taken
        return taken

    def fds_of(self, role: str) -> Mapping[str, int]:
        fds: dict[str, int] = {}
        if self._arena.fd is not None and role != "evaluator":
            fds["arena"] = self._arena.fd
        if role in ("worker", "broker"):  # the broker hands them on to hosts that do not see the store
            fds["weights"] = self._relay.fd
        return fds

    def boot_of(self, role: str, boot: Boot) -> Boot:
        """Every new broker has the list from the start."""
        boot = super().boot_of(role, boot)
        return replace(boot, keys=self._keys, allowed=self._allowed) if role == "broker" else boot

    def report(self, report: HostReport) -> None:
        self._link.report(report)
        if self._allowed.serial:
            self._link.allow(self._allowed)

    def allow(self, allowed: AllowList) -> None:
        self._allowed = max(self._allowed, allowed, key=lambda known: known.serial)
        self._link.allow(self._allowed)

    def ledger(self) -> Ledger | None:
        return self._arena.ledger()

    def arena_usage(self) -> ArenaUsage | None:
        return self._arena.usage()

    def close(self) -> None:
        if self.token is not None:
            self._store.remove_token(self._run_id)
        self._link.close()
        self._relay.close()
        self._arena.close()
