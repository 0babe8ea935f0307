"""Whether a machine has another address than the one at which others are connected to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AddressChange:
    """Addresses that have replaced others."""

    gone: Sequence[str]
    new: Sequence[str]

    def of(self, machine: str) -> str:
        """Sentence for the user."""
        return f"the address of {machine} has changed: {', '.join(self.gone)} -> {', '.join(self.new)}"


class AddressWatch:
    """Compares the addresses of one machine with those before."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def check(self, addresses: Sequence[str]) -> AddressChange | None:
        """The change since the addresses that were known, once.

        Connections survive an interface that is down for a moment and returns with its address: one that is gone
        counts when another has come.
        """
        gone, new = self._known - set(addresses), set(addresses) - self._known
        if gone and not new:
            return None
        self._known = frozenset(addresses)
        return AddressChange(sorted(gone), sorted(new)) if gone else None
