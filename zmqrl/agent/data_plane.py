"""What the host agent holds of the data plane: the arena, the weights buffer, the link to the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zmqrl.config.plan import Boot, Endpoints
from zmqrl.messages.agent import Join
from zmqrl.messages.bus import HostReport
from zmqrl.types import AllowList, Ledger, Notice
from zmqrl.wire.probe import Reached


class DataPlane(ABC):
    """The agent's view of it; `NoDataPlane` is single mode's."""

    current: Notice | None = None
    """The newest version that this host knows."""
    endpoints: Endpoints | None = None
    """Where this host's processes find the broker; None until `join`."""

    token: str | None = None
    """What other hosts look for in the store."""
    sees_store = True
    """Whether versions are read from the store; else they are requested from the broker."""

    @property
    def farewell(self) -> str | None:
        """Why this host's part ends, once the broker has reported that it does."""
        return None

    @property
    def heard(self) -> int | None:
        """Grows with each message of the broker; None where the broker is a child of this agent."""
        return None

    @property
    def refused(self) -> Counter[str]:
        """Messages of the broker that were refused, by reason."""
        return Counter()

    def join(self, join: Join) -> Reached | None:
        """Find the broker; waits for some seconds. DeadlineExceeded when no address leads to it."""
        raise NotImplementedError("this host has the broker")

    @property
    @abstractmethod
    def sockets(self) -> Sequence[Any]:
        """ZeroMQ sockets to poll; readable means `take_notice`."""

    @abstractmethod
    def take_notice(self) -> Notice | None:
        """Read the link and fetch a new version; None when there is none. StoreError when it cannot be fetched."""

    def boot_of(self, role: str, boot: Boot) -> Boot:
        """`boot` with what a process of `role` needs to reach the broker. The endpoints are known by then."""
        assert self.endpoints is not None, "processes start after the broker's endpoints are known"
        del role
        return replace(boot, endpoints=self.endpoints)

    @abstractmethod
    def fds_of(self, role: str) -> Mapping[str, int]:
        """The shared descriptors that a process of `role` inherits."""

    @abstractmethod
    def report(self, report: HostReport) -> None:
        """Report to the broker the live processes and the workers assigned to this host."""

    def allow(self, allowed: AllowList) -> None:
        """Who may participate from other hosts, from now on."""
        return

    @abstractmethod
    def ledger(self) -> Ledger | None:
        """The current stream records of the arena; None without an arena."""

    @abstractmethod
    def leases_in_use(self) -> int | None:
        """Slots that workers may write now; None without an arena."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class NoDataPlane(DataPlane):
    """single: the learner holds everything in its own memory and sends notices as events."""

    endpoints = Endpoints()

    @property
    def sockets(self) -> Sequence[Any]:
        return ()

    def take_notice(self) -> Notice | None:
        return None

    def fds_of(self, role: str) -> Mapping[str, int]:
        return {}

    def report(self, report: HostReport) -> None:
        return

    def ledger(self) -> Ledger | None:
        return None

    def leases_in_use(self) -> int | None:
        return None

    def close(self) -> None:
        return
