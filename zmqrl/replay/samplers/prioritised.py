"""Prioritised replay, proportional variant (Schaul et al. 2016, section 3), over a sum tree."""

from __future__ import annotations

import numpy as np

from zmqrl.replay.held_segments import HeldSegments
from zmqrl.replay.samplers.base import AddedSegment, Sampler
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.replay.sum_tree import SumTree
from zmqrl.types import Array, Weights


class PrioritisedSampler(Sampler):
    """Draws items by priority. Released segments keep no mass.

    A new item has the largest mass seen so far, or that of its first priority. Weights are (items * P(item)) ** -beta
    over the largest weight of the same minibatch.
    """

    def __init__(self, spec: ReplaySpec, held: HeldSegments) -> None:
        super().__init__(spec, held)
        self._settings = spec.prioritised or Prioritised()
        self._beta = self._settings.beta
        self._tree = SumTree(held.places * held.per_place)
        self._largest = 1.0
        self._restored: list[Array] = []

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Draw items by priority; with `uniform_mix`, that share is drawn uniformly."""
        mix, total, held = self._settings.uniform_mix, self._tree.total, self.held
        items = self._tree.find(generator.random(count) * total)
        if mix:
            uniform = held.nth(generator.integers(0, held.size, count))
            items = np.where(generator.random(count) < mix, uniform, items)
        probability = (1.0 - mix) * self._tree.get(items) / total + mix / held.size
        weight = (held.size * probability) ** -self._beta
        return items, (weight / weight.max()).astype(np.float32)

    def added(self, segment: AddedSegment) -> None:
        """New items have their first mass; those of a restored segment the mass that they had."""
        start, size = segment.place * self.held.per_place, self.held.per_place
        if self._restored:
            self._tree.set_range(start, self._restored.pop(0))
            return
        mass = np.zeros(size)
        first = segment.priorities
        mass[segment.items - start] = self._largest if first is None else self._mass(first)
        self._tree.set_range(start, mass)

    def released(self, place: int) -> None:
        """Its items are never drawn again."""
        self._tree.set_range(place * self.held.per_place, np.zeros(self.held.per_place))

    def set_priorities(self, items: Array, priorities: Array) -> None:
        """Mass is (|delta| + epsilon) ** alpha."""
        mass = self._mass(priorities)
        if len(mass):
            self._tree.set(items, mass)
            self._largest = max(self._largest, float(mass.max()))

    def anneal(self, beta: float) -> None:
        self._beta = beta

    def state(self) -> dict[str, Array]:
        """Every held item's mass, and the largest mass seen."""
        leaves = self.held.by_age()[:, None] * self.held.per_place + np.arange(self.held.per_place)
        return {"replay.mass": self._tree.get(leaves), "replay.largest": np.array([self._largest])}

    def load_state(self, state: Weights) -> None:
        """The segments added next take the masses they had."""
        self._largest = float(state["replay.largest"][0])
        self._restored = list(state["replay.mass"])

    def _mass(self, priorities: Array) -> Array:
        mass: Array = (np.abs(priorities.astype(np.float64)) + self._settings.epsilon) ** self._settings.alpha
        return mass
