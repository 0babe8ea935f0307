"""What a `MemoryBackend` promises. A maker gives both ends of a run, until the end of `with`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.testing.expect import assert_within, checks_of, is_frozen_config
from zmqrl.types import EnvSpec, SpaceSpec

WAIT_S = 60.0
TURN_S = 0.2
MARGIN_S = 1.0


class Ends(NamedTuple):
    """A worker's memory backend and the broker's, of one run."""

    sender: MemoryBackend
    receiver: MemoryBackend


BackendMaker: TypeAlias = Callable[[RunPlan], AbstractContextManager[Ends]]
"""Both ends of a run; they are closed at the end of the context."""


def backend_maker(kind: type[MemoryBackend], config: Any) -> BackendMaker:
    """The maker of a kind whose ends need nothing but configuration and plan."""

    @contextmanager
    def make(plan: RunPlan) -> Iterator[Ends]:
        ends = Ends(kind(config, plan), kind(config, plan))
        try:
            yield ends
        finally:
            for end in ends:
                end.close()

    return make


def plan_of(run_id: str) -> RunPlan:
    """A run, of which a memory backend needs the id."""
    space = SpaceSpec("discrete", (), "int64", 2)
    env = EnvSpec("none", space, space)
    return RunPlan(run_id, "", 0.0, Config(), env, {}, (), True, 4, 4, {"local": 1}, 4, "")


def config_is_a_frozen_dataclass(make: BackendMaker) -> None:
    """The keys of hosts.yaml are validated against `Config`, and no process changes them."""
    with make(plan_of("config")) as ends:
        is_frozen_config(type(ends.receiver).Config)


def whole_messages_arrive(make: BackendMaker) -> None:
    """The same frames in the same order, whatever their number, type and size."""
    sent: list[list[Any]] = [
        [b"one frame"],
        [bytes([number]) * (1 + 37 * number) for number in range(12)],
        [b"header", np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones((4, 2), bool), memoryview(b"\0\xff")],
        [b"large", np.random.Generator(np.random.Philox(1)).integers(0, 255, 3_000_000).astype(np.uint8)],
    ]
    with make(plan_of("whole")) as ends:
        found = _carried(ends, sent)
    assert sorted(found) == sorted([bytes(frame) for frame in message] for message in sent)


def many_messages_arrive(make: BackendMaker) -> None:
    """More than one call of `receive` returns, and more than the carrier may hold: `send` then returns False."""
    with make(plan_of("many")) as ends:
        found = _carried(ends, [[number.to_bytes(4, "big"), b"x" * 2000] for number in range(500)])
    assert sorted(int.from_bytes(message[0], "big") for message in found) == list(range(500))


def waiting_ends_in_time(make: BackendMaker) -> None:
    """Without messages after `timeout_s`; with one as soon as it is there."""
    with make(plan_of("wait")) as ends:
        _carried(ends, [[b"first"]])
        begun = time.monotonic()
        assert list(ends.receiver.receive(TURN_S)) == []
        assert_within(time.monotonic() - begun, TURN_S + MARGIN_S, "receive")
        sending = threading.Timer(TURN_S, lambda: ends.sender.send([b"second"]))
        sending.start()
        begun = time.monotonic()
        assert [[bytes(f) for f in frames] for frames in ends.receiver.receive(WAIT_S)] == [[b"second"]]
        assert_within(time.monotonic() - begun, TURN_S + MARGIN_S, "receive")
        sending.join()


def runs_are_kept_apart(make: BackendMaker) -> None:
    """Two runs over one carrier."""
    with make(plan_of("a")) as first, make(plan_of("b")) as second:
        of_a, of_b = _sent(first, [b"of a"]), _sent(second, [b"of b"])
        assert (_received(first, 1, of_a), _received(second, 1, of_b)) == ([[b"of a"]], [[b"of b"]])
        assert list(first.receiver.receive(TURN_S)) == []


MEMORY_BACKEND = checks_of(__name__)


def _carried(ends: Ends, messages: Sequence[Sequence[Any]]) -> list[list[bytes]]:
    meanwhile = [message for sent in messages for message in _sent(ends, sent)]
    return _received(ends, len(messages), meanwhile)


def _sent(ends: Ends, message: Sequence[Any]) -> list[list[bytes]]:
    """Hand `message` over; what was received until the carrier took it."""
    found: list[list[bytes]] = []
    until = time.monotonic() + WAIT_S
    while not ends.sender.send(message):
        assert time.monotonic() < until, f"send returned False for {WAIT_S:g} s, while the other end received"
        found += _copied(ends.receiver.receive(TURN_S))
    return found


def _received(ends: Ends, count: int, found: list[list[bytes]]) -> list[list[bytes]]:
    """`found` and what follows, until these are `count` messages."""
    until = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} messages within {WAIT_S:g} s"
        found = found + _copied(ends.receiver.receive(TURN_S))
    return found


def _copied(messages: Sequence[Sequence[Any]]) -> list[list[bytes]]:
    return [[bytes(frame) for frame in frames] for frames in messages]
