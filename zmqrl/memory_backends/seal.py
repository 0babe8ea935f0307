"""The seal of a message that another carrier than the bus brings: which host sent it, and that it is as it was sent.

The bus authenticates each connection by CURVE. Other carriers are not trusted: the sender's host proves itself with the
same keys. Both sides compute one secret from their own secret key and the other's public key (X25519, RFC 7748) and key
BLAKE2b (RFC 7693) with it. Without keys (`security.curve: off`) the seal only finds changed messages.
The seal does not encrypt: that is the carrier's part.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zmq.utils import z85

from zmqrl.config.plan import Keys
from zmqrl.errors import WireError
from zmqrl.wire.admission import Admission

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY_BYTES = DIGEST_BYTES = 32
NO_KEY = bytes(KEY_BYTES)
PERSON = b"zmqrl-segment"
WRONG_SEAL = "wrong seal"
"""Reason under which the broker counts what it refuses; keys that it does not know: `admission.UNKNOWN_KEY`."""


class Sealing:
    """A worker's side."""

    def __init__(self, run_id: str, keys: Keys | None) -> None:
        self._run_id = run_id
        self._public = NO_KEY if keys is None else z85.decode(keys.public)
        self._secret = b"" if keys is None else _shared(keys.secret, keys.server)

    def seal(self, frames: Sequence[Buffer]) -> list[Buffer]:
        """The message that travels: the seal, then `frames`."""
        return [self._public + _digest(self._secret, self._run_id, frames), *frames]


class Opening:
    """The broker's side."""

    def __init__(self, run_id: str, keys: Keys | None, admission: Admission) -> None:
        """`keys`: the broker's. `admission`: looked up at each message, because a key may be revoked meanwhile."""
        self._run_id, self._keys, self._admission = run_id, keys, admission
        self._secrets: dict[str, bytes] = {}

    def open(self, frames: Sequence[Buffer]) -> str:
        """The host that sent the message, "" without keys. WireError when a key or the content is wrong."""
        seal = bytes(frames[0]) if frames else b""
        if len(seal) != KEY_BYTES + DIGEST_BYTES:
            raise WireError(WRONG_SEAL, f"{len(seal)} bytes")
        host, secret = self._sender(seal[:KEY_BYTES])
        if not hmac.compare_digest(seal[KEY_BYTES:], _digest(secret, self._run_id, frames[1:])):
            raise WireError(WRONG_SEAL, f"of {host or 'a host without a key'}")
        return host

    def _sender(self, public: bytes) -> tuple[str, bytes]:
        if self._keys is None:
            return "", b""
        name = z85.encode(public).decode()
        host = self._admission.host_of(name)
        if name not in self._secrets:
            self._secrets[name] = _shared(self._keys.secret, name)
        return host, self._secrets[name]


def _shared(secret: str, public: str) -> bytes:
    """The secret that only the owners of these two keys can compute."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    own = X25519PrivateKey.from_private_bytes(z85.decode(secret))
    return own.exchange(X25519PublicKey.from_public_bytes(z85.decode(public)))


def _digest(secret: bytes, run_id: str, frames: Sequence[Buffer]) -> bytes:
    """Digest of the run, and of each frame with its length."""
    digest = hashlib.blake2b(run_id.encode(), digest_size=DIGEST_BYTES, key=secret, person=PERSON)
    for frame in frames:
        view = memoryview(frame)
        digest.update(view.nbytes.to_bytes(8, "little"))
        digest.update(view)
    return digest.digest()
