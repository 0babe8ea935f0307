"""Who may participate from other hosts: the newest allow-list, and what follows from it for one sender. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set

from zmqrl.errors import WireError
from zmqrl.types import AllowList, HostKey

UNKNOWN_KEY = "unknown key"
"""Why a connection or a message is refused: its key is not on the list, or no longer."""
NO_HANDSHAKE = "no handshake"
"""A connection ended before its handshake was complete."""
TOKEN = "token"
"""Why an enrolment is refused."""


def digest_of(token: str) -> str:
    """What the list has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Admission:
    """Changed by `replace` alone: the launcher decides who is on the list."""

    def __init__(self, allowed: AllowList | None = None) -> None:
        self._allowed = allowed or AllowList()

    @property
    def serial(self) -> int:
        """Serial of the list that is followed."""
        return self._allowed.serial

    @property
    def hosts(self) -> Set[HostKey]:
        """Who participates: a host that came back with another agent has another incarnation."""
        return frozenset(self._allowed.hosts.values())

    @property
    def absent(self) -> Sequence[str]:
        """Hosts of the plan that the first assignment does not wait for."""
        return self._allowed.absent

    def replace(self, newest: AllowList) -> bool:
        """Follow `newest`, if it is newer."""
        is_newer = newest.serial > self._allowed.serial
        if is_newer:
            self._allowed = newest
        return is_newer

    def may_connect(self, public: str, to_enrol: bool) -> bool:
        """Whether a connection with this key is accepted. `to_enrol`: to a socket that takes enrolments."""
        return self.knows(public) or (to_enrol and bool(self._allowed.tokens))

    def knows(self, public: str) -> bool:
        """Whether it is the key of a host on the list."""
        return public in self._allowed.hosts

    def host_of(self, public: str) -> str:
        """The host whose key it is, for each message: a connection outlives its key. WireError for any other key."""
        key = self._allowed.hosts.get(public)
        if key is None:
            raise WireError(UNKNOWN_KEY, "the key is not on the allow-list, or no longer")
        return key.host

    def enrol(self, token: str) -> str:
        """The digest of a token that admits a host. WireError states why it does not."""
        digest = digest_of(token)
        if digest not in self._allowed.tokens:
            raise WireError(TOKEN, "the token is not one of this run, or was replaced by a newer connection file")
        if self._allowed.tokens[digest] is None:
            raise WireError(TOKEN, "the token was used before: a connection file admits one host, once")
        return digest
