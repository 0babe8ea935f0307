"""What the host agent holds of the data plane: the arena, the weights buffer, the link to the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from zmqrl.types import Ledger, Notice


class DataPlane(ABC):
    """The agent's view of it; `NoDataPlane` is single mode's."""

    current: Notice | None = None
    """The newest version that this host knows."""

    @property
    @abstractmethod
    def sockets(self) -> Sequence[Any]:
        """ZeroMQ sockets to poll; readable means `take_notice`."""

    @abstractmethod
    def take_notice(self) -> Notice | None:
        """Read the link and fetch a new version; None when there is none. StoreError when it cannot be fetched."""

    @abstractmethod
    def fds_of(self, role: str) -> Mapping[str, int]:
        """The shared descriptors that a process of `role` inherits."""

    @abstractmethod
    def report(self, alive: Mapping[int, int], given_up: Sequence[int]) -> None:
        """Tell the broker which workers live (index to spawn) and which never come back."""

    @abstractmethod
    def ledger(self) -> Ledger | None:
        """The books as they stand in the arena; None where there is none."""

    @abstractmethod
    def leases_in_use(self) -> int | None:
        """Slots that workers may write now; None where there is no arena."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class NoDataPlane(DataPlane):
    """single: the learner holds everything in its own memory and sends notices as events."""

    @property
    def sockets(self) -> Sequence[Any]:
        return ()

    def take_notice(self) -> Notice | None:
        return None

    def fds_of(self, role: str) -> Mapping[str, int]:
        return {}

    def report(self, alive: Mapping[int, int], given_up: Sequence[int]) -> None:
        return

    def ledger(self) -> Ledger | None:
        return None

    def leases_in_use(self) -> int | None:
        return None

    def close(self) -> None:
        return
