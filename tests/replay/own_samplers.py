"""Samplers as a user writes them, with and without faults."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from zmqrl.replay.samplers.base import AddedSegment, Sampler
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Array, Weights


@dataclass(frozen=True)
class RecentSpec(ReplaySpec):
    """Its own field."""

    sampler: str = "tests.replay.own_samplers:Recent"
    recent: int = 2


class Recent(Sampler):
    """Items of the newest segments; counts what it is notified of."""

    spec: RecentSpec

    def __init__(self, spec: RecentSpec, held: object) -> None:
        super().__init__(spec, held)  # type: ignore[arg-type]
        self.places: deque[int] = deque()
        self.added_segments: list[AddedSegment] = []
        self.calls: Array = np.zeros(2)
        self.beta = 0.0

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        items = np.concatenate([self.held.items(place) for place in list(self.places)[-self.spec.recent :]])
        return generator.choice(items, count), np.full(count, 0.5, np.float32)

    def added(self, segment: AddedSegment) -> None:
        self.places.append(segment.place)
        self.added_segments.append(segment)

    def released(self, place: int) -> None:
        assert self.places.popleft() == place

    def set_priorities(self, items: Array, priorities: Array) -> None:
        self.calls += len(items), priorities.sum()

    def anneal(self, beta: float) -> None:
        self.beta = beta

    def state(self) -> dict[str, Array]:
        return {"calls": self.calls}

    def load_state(self, state: Weights) -> None:
        self.calls = np.array(state["calls"])


class _Fixed(Sampler):
    items: object
    weights: object = np.ones(2, np.float32)

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        return self.items, self.weights  # type: ignore[return-value]


class Released(_Fixed):
    """The segment in place 0 was let go."""

    items = np.array([6, 3])


class Invalid(_Fixed):
    """Row 1 of place 1 is an autoreset row."""

    items = np.array([6, 7])


class Outside(_Fixed):
    items = np.array([6, -1])


class Float(_Fixed):
    items = np.array([6.0, 6.0])


class Few(_Fixed):
    items = np.array([6])


class Doubles(_Fixed):
    items, weights = np.array([6, 6]), np.ones(2)


class Infinite(_Fixed):
    items, weights = np.array([6, 6]), np.array([1, np.inf], np.float32)


class OddState(_Fixed):
    items = np.array([6, 6])

    def state(self) -> dict[str, Array]:
        return {"table": np.zeros((3, 2))}
