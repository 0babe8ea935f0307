"""Samplers, each with the defect that a check of the suite is about."""

from __future__ import annotations

import numpy as np

from zmqrl.replay.samplers.base import AddedSegment
from zmqrl.replay.samplers.uniform import UniformSampler
from zmqrl.types import Array


def _weights(count: int) -> Array:
    return np.ones(count, np.float32)


class Unfiltered(UniformSampler):
    """Also autoreset rows."""

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        (place,) = self.held.by_age()[-1:]
        return generator.integers(0, self.held.per_place, count) + place * self.held.per_place, _weights(count)


class Clinging(UniformSampler):
    """The first segment for ever."""

    items: Array | None = None

    def added(self, segment: AddedSegment) -> None:
        self.items = segment.items if self.items is None else self.items

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        assert self.items is not None
        return generator.choice(self.items, count), _weights(count)


class Moody(UniformSampler):
    """Its own random numbers."""

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        return super().draw(np.random.default_rng(), count)


class Forgetful(UniformSampler):
    """A counter that is not in its state."""

    draws = 0

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        self.draws += 1
        return self.held.nth((np.arange(count) + self.draws) % self.held.size), _weights(count)
