"""One-time tokens of hosts that join by a connection file. Of a token only its sha256 is kept. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from zmqrl.wire.admission import digest_of

TOKEN_BYTES = 32


class Invitations:
    """Who may still enrol a key, and who has."""

    def __init__(self) -> None:
        self._hosts: dict[str, str | None] = {}

    @property
    def tokens(self) -> Mapping[str, str | None]:
        """As the allow-list has them: a copy."""
        return dict(self._hosts)

    def token_for(self, host: str) -> str:
        """A new token of 256 bits for `host`; one that it was given earlier and has not used is void."""
        self.void(host)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._hosts[digest_of(token)] = host
        return token

    def void(self, host: str) -> None:
        """A token that `host` was given and has not used is invalid from now on."""
        self._hosts = {digest: invited for digest, invited in self._hosts.items() if invited != host}

    def accept(self, digest: str) -> str | None:
        """The host that the token admits, once; None when it was used, or is unknown."""
        host = self._hosts.get(digest)
        if host is not None:
            self._hosts[digest] = None
        return host
