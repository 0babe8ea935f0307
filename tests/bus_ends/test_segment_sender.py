"""A carrier that is away: nothing is sent, the launcher is notified once, and once more when it is back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.bus_ends.event_pipe import EventPipe
from tests.shared_memory.bus_plans import bus_plan
from tests.support.raising import raises
from zmqrl.bus_ends.remote_sink import SealedSender
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError, TransportError
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.memory_backends.seal import Opening
from zmqrl.wire.admission import Admission

AWAY = {"event": "problem", "cause": "it is away", "done": "segments are kept and sent again", "severity": "warning"}
BACK = {
    "event": "problem",
    "cause": "the memory backend accepts segments again",
    "done": "segments that were kept are sent",
    "severity": "note",
}


class Hand(MemoryBackend):
    def __init__(self) -> None:
        super().__init__(NO_KEYS, bus_plan())
        self.error: Exception | None = None
        self.takes = True
        self.sent: list[list[bytes]] = []

    def send(self, frames: Sequence[Any]) -> bool:
        if self.error is not None:
            raise self.error
        if self.takes:
            self.sent.append([bytes(frame) for frame in frames])
        return self.takes

    def receive(self, timeout_s: float) -> list[Any]:
        raise NotImplementedError


@pytest.fixture
def events() -> Iterator[EventPipe]:
    pipe = EventPipe()
    yield pipe
    pipe.close()


def test_an_outage_is_reported_once_and_its_end_once(events: EventPipe) -> None:
    hand = Hand()
    sender = SealedSender(Boot("worker", 0, 0, "far", hand.plan, fds={"events": events.write_fd}), hand)
    assert sender.send([b"one"])
    assert events.read(0.0) == []
    hand.error = TransportError("it is away")
    assert [sender.send([b"two"]) for _ in range(3)] == [False] * 3
    hand.error, hand.takes = None, False
    assert not sender.send([b"two"]), "a carrier that takes nothing is not back"
    hand.takes = True
    assert sender.send([b"two"]) and sender.send([b"three"])
    assert events.read(1.0) == [AWAY, BACK]
    opening = Opening(hand.plan.run_id, None, Admission())
    assert [(opening.open(message), message[1:]) for message in hand.sent] == [
        ("", [b"one"]),
        ("", [b"two"]),
        ("", [b"three"]),
    ]


def test_another_error_ends_the_worker(events: EventPipe) -> None:
    hand = Hand()
    hand.error = ConfigError("wrong password")
    sender = SealedSender(Boot("worker", 0, 0, "far", hand.plan, fds={"events": events.write_fd}), hand)
    with raises(ConfigError, key=(), what="wrong password"):
        sender.send([b"one"])
