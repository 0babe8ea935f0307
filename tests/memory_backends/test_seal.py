"""Who sealed a message, and that it is as it was sent: else it is refused, with the reason that is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zmqrl.config.codec import replace
from zmqrl.config.plan import Keys
from zmqrl.errors import WireError
from zmqrl.memory_backends.seal import Opening, Sealing
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.admission import Admission
from zmqrl.wire.sockets import make_keys

SERVER, A, B, OTHER = (make_keys() for _ in range(4))
ALLOWED = AllowList(1, {A.public: HostKey("a", 1), B.public: HostKey("b", 1)})
COLUMN = np.arange(12, dtype=np.float32).reshape(3, 4)
FRAMES: list[Any] = [b"header", COLUMN, np.ones((2, 2), bool), b""]


def keys(own: Keys, server: Keys = SERVER) -> Keys:
    return replace(own, server=server.public)


def opening_of(server: Keys | None = SERVER) -> Opening:
    return Opening("run", server, Admission(ALLOWED))


def carried(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def reason(opening: Opening, frames: list[bytes]) -> str:
    with pytest.raises(WireError) as refusal:
        opening.open(frames)
    return refusal.value.reason


@pytest.mark.parametrize(("own", "host"), [(A, "a"), (B, "b")])
def test_the_sender_is_the_host_of_the_key(own: Keys, host: str) -> None:
    sealed = carried(Sealing("run", keys(own)).seal(FRAMES))
    assert opening_of().open(sealed) == host
    assert sealed[1:] == carried(FRAMES)
    assert len(sealed[0]) == 64


def test_without_keys_no_host_is_named_and_changes_are_found() -> None:
    sealed = carried(Sealing("run", None).seal(FRAMES))
    opening = opening_of(None)
    assert opening.open(sealed) == ""
    assert reason(opening, [sealed[0], b"Header", *sealed[2:]]) == "wrong seal"


@pytest.mark.parametrize("changed", [
    lambda s: [s[0], s[2], s[1], *s[3:]],
    lambda s: [*s[:2], s[2][:-1] + b"\7", *s[3:]],
    lambda s: s[:-1],
    lambda s: [*s, b""],
    lambda s: [*s[:2], s[2] + s[3][:1], s[3][1:], *s[4:]],
    lambda s: [s[0][:32] + bytes(32), *s[1:]],
    lambda s: s[1:],
    lambda s: [s[0]],
    lambda _: [],
], ids=["order", "byte", "frame gone", "frame more", "boundary", "digest", "no seal", "seal", "nothing"])  # fmt: skip
def test_a_changed_message_is_refused(changed: Any) -> None:
    sealed = carried(Sealing("run", keys(A)).seal(FRAMES))
    assert reason(opening_of(), changed(sealed)) == "wrong seal"


def test_another_key_another_run_and_another_server_are_refused() -> None:
    opening = opening_of()
    assert reason(opening, carried(Sealing("run", keys(OTHER)).seal(FRAMES))) == "unknown key"
    assert reason(opening, carried(Sealing("other", keys(A)).seal(FRAMES))) == "wrong seal"
    assert reason(opening, carried(Sealing("run", keys(A, OTHER)).seal(FRAMES))) == "wrong seal"
    assert reason(opening, carried(Sealing("run", None).seal(FRAMES))) == "unknown key"
    forged = carried(Sealing("run", replace(keys(A), secret=OTHER.secret)).seal(FRAMES))
    assert reason(opening, forged) == "wrong seal", "a public key is not a proof"


def test_a_revoked_key_is_refused_from_the_next_message_on() -> None:
    admission = Admission(ALLOWED)
    opening = Opening("run", SERVER, admission)
    sealed = carried(Sealing("run", keys(A)).seal(FRAMES))
    assert opening.open(sealed) == "a"
    admission.replace(AllowList(2, {B.public: HostKey("b", 1)}))
    assert reason(opening, sealed) == "unknown key"
