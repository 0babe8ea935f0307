"""A memory backend that takes few messages until they are received is valid: the suite passes over it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contracts.suites import name_of
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.testing.memory_backend import MEMORY_BACKEND, BackendMaker, Ends

MOST = 3


class Listener:
    """Both ends use it; like a socket, it takes messages from the first `receive` on."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Sequence[Any]] = queue.Queue(MOST)
        self.listens = False


class Bounded(MemoryBackend):
    """Returns False before the first `receive`, and while the queue is full."""

    def __init__(self, plan: RunPlan, listener: Listener) -> None:
        super().__init__(NO_KEYS, plan)
        self._listener = listener

    def send(self, frames: Sequence[Any]) -> bool:
        if not self._listener.listens:
            return False
        try:
            self._listener.messages.put_nowait([bytes(frame) for frame in frames])
        except queue.Full:
            return False
        return True

    def receive(self, timeout_s: float) -> list[Sequence[Any]]:
        self._listener.listens = True
        try:
            return [
                self._listener.messages.get(timeout=timeout_s) if timeout_s else self._listener.messages.get_nowait()
            ]
        except queue.Empty:
            return []


@contextmanager
def bounded_ends(plan: RunPlan) -> Iterator[Ends]:
    listener = Listener()
    yield Ends(Bounded(plan, listener), Bounded(plan, listener))


@pytest.mark.parametrize("check", MEMORY_BACKEND, ids=name_of)
def test_the_suite_passes(check: Callable[[BackendMaker], None]) -> None:
    check(bounded_ends)
