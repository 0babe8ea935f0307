"""FETCH: a request is answered once, when what was requested is there."""

from __future__ import annotations

import hashlib

import pytest

from zmqrl.broker import weights_server
from zmqrl.broker.weights_server import WeightsServer
from zmqrl.messages.bus import Weights
from zmqrl.messages.frames import unpack
from zmqrl.types import Notice, Version


class Buffer:
    """Holds the last two versions."""

    def __init__(self) -> None:
        self.held: list[tuple[Notice, bytes]] = []
        self.reads = 0

    def put(self, n: int, content: bytes, incarnation: int = 0) -> None:
        digest = hashlib.sha256(content).hexdigest()
        self.held = [*self.held[-1:], (Notice(Version(incarnation, n), f"v{n}", len(content), digest, n), content)]

    def version(self, n: int | None = None) -> Version | None:
        found = self._found(n)
        return None if found is None else found[0].version

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        self.reads += 1
        return self._found(n)

    def _found(self, n: int | None) -> tuple[Notice, bytes] | None:
        return next((held for held in reversed(self.held) if n in (None, held[0].version.n)), None)


def content_of(frames: list[bytes]) -> tuple[list[int], bytes]:
    message = unpack(frames[0])
    assert isinstance(message, Weights)
    assert message.parts == len(frames) - 1
    return list(message.notice.version), b"".join(frames[1:])


def test_a_version_that_is_not_there_yet_is_served_once_when_it_comes() -> None:
    buffer = Buffer()
    server = WeightsServer(buffer)
    assert not server.waiting
    server.request(b"one", Version(0, 2))
    assert server.pop_ready() == []
    buffer.put(1, b"old")
    assert (server.pop_ready(), server.waiting) == ([], True)
    buffer.put(2, b"new")
    ((peer, frames),) = server.pop_ready()
    assert (peer, content_of(frames)) == (b"one", ([0, 2], b"new"))
    assert (server.pop_ready(), server.waiting) == ([], False)


def test_the_newest_wins_and_is_copied_once_for_all() -> None:
    buffer = Buffer()
    server = WeightsServer(buffer)
    for peer in (b"one", b"two", b"one"):
        server.request(peer, Version(0, 1))
    buffer.put(5, b"five")
    served = server.pop_ready()
    assert sorted(peer for peer, _ in served) == [b"one", b"two"]
    assert {content_of(frames)[1] for _, frames in served} == {b"five"}
    server.request(b"three", Version(0, 3))
    assert len(server.pop_ready()) == 1
    assert buffer.reads == 1


def test_the_version_before_is_served_while_it_is_there() -> None:
    """pipelined: a host that missed it may need it, though a newer one was announced."""
    buffer = Buffer()
    server = WeightsServer(buffer)
    for n in (1, 2):
        buffer.put(n, b"%d" % n)
    for peer, n in ((b"late", 1), (b"prompt", 2)):
        server.request(peer, Version(0, n))
    served = dict(server.pop_ready())
    assert {peer: content_of(frames)[1] for peer, frames in served.items()} == {b"late": b"1", b"prompt": b"2"}
    buffer.put(3, b"3")
    server.request(b"late", Version(0, 1))
    ((_, frames),) = server.pop_ready()
    assert content_of(frames) == ([0, 3], b"3"), "no round needs it any more"


def test_after_a_replaced_learner_the_version_before_is_served_first() -> None:
    """pipelined: with the newest alone a host would never have the version with which its next round is acted."""
    buffer = Buffer()
    server = WeightsServer(buffer, rounds_ahead=1)
    server.request(b"far", Version(2, 6))
    for n in (5, 6):
        buffer.put(n, b"%d" % n, incarnation=3)
    ((_, frames),) = server.pop_ready()
    assert content_of(frames) == ([3, 5], b"5")


def test_a_version_that_is_replaced_before_it_is_copied_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer()
    server = WeightsServer(buffer)
    server.request(b"one", Version(0, 1))
    buffer.put(1, b"1")
    with monkeypatch.context() as patched:
        patched.setattr(buffer, "read", lambda _: None)
        assert (server.pop_ready(), server.waiting) == ([], True)
    ((_, frames),) = server.pop_ready()
    assert content_of(frames) == ([0, 1], b"1")


def test_big_weights_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_server, "PART_BYTES", 4)
    buffer = Buffer()
    buffer.put(1, b"0123456789")
    server = WeightsServer(buffer)
    server.request(b"one", Version(0, 1))
    ((_, frames),) = server.pop_ready()
    assert len(frames) == 4
    assert content_of(frames) == ([0, 1], b"0123456789")


def test_without_a_buffer_no_request_is_served() -> None:
    server = WeightsServer(None)
    server.request(b"one", Version(0, 0))
    assert server.pop_ready() == []
