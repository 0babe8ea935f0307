"""Prioritised replay, proportional variant (Schaul et al. 2016, section 3), over a sum tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zmqrl.replay.base import ReplaySample
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import Array, Weights


class SumTree:
    """Leaves 0 .. size - 1. Parents are recomputed from both children, never by differences, so sums do not drift."""

    def __init__(self, size: int) -> None:
        self._depth = max(1, (size - 1).bit_length())
        self._first = 1 << self._depth
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Mass of all leaves."""
        return float(self._nodes[1])

    def get(self, leaves: Array) -> Array:
        """Mass of `leaves [B]`."""
        masses: Array = self._nodes[self._first + leaves]
        return masses

    def set(self, leaves: Array, masses: Array) -> None:
        """Set the mass of `leaves [B]`; of a leaf that is named twice, the last counts."""
        nodes = self._nodes
        at = leaves + self._first
        nodes[at] = masses
        for _ in range(self._depth):
            at = at >> 1
            nodes[at] = nodes[2 * at] + nodes[2 * at + 1]

    def set_range(self, start: int, masses: Array) -> None:
        """Set consecutive leaves from `start` on: as `set`, for a whole segment at a time."""
        nodes, low, high = self._nodes, start + self._first, start + self._first + len(masses)
        nodes[low:high] = masses
        for _ in range(self._depth):
            low, high = low >> 1, ((high - 1) >> 1) + 1
            nodes[low:high] = nodes[2 * low : 2 * high : 2] + nodes[2 * low + 1 : 2 * high : 2]

    def find(self, masses: Array) -> Array:
        """The leaves `[B]` at which the running sum first exceeds `masses [B]`, each in [0, total).

        A leaf without mass is never found.
        """
        nodes = self._nodes
        rest: Array = masses.astype(np.float64)
        at: Array = np.ones(len(masses), dtype=np.int64)
        for _ in range(self._depth):
            at += at
            left = nodes.take(at)
            right = rest >= left
            # Guards against rounding: `rest` may reach the sum of a node by a last bit.
            right &= nodes.take(at + 1) > 0.0
            np.subtract(rest, left, out=rest, where=right)
            at += right
        return at - self._first


@dataclass(frozen=True)
class Priorities:
    """Settings. A row's mass is (|delta| + epsilon) ** alpha; a new row has the largest mass seen so far."""

    alpha: float = 0.6
    beta: float = 0.4
    """Exponent of the importance weights."""
    epsilon: float = 1e-4
    uniform_mix: float = 0.0
    """Share of rows drawn uniformly."""


class PrioritisedReplay(UniformReplay):
    """Draws rows by priority. Released segments keep no mass; priorities for them that come late are ignored.

    Weights are (rows * P(row)) ** -beta over the largest weight of the same minibatch.
    """

    def __init__(self, columns: Mapping[str, Array], max_segments: int, seed: int, settings: Priorities) -> None:
        super().__init__(columns, max_segments, seed)
        self._settings, self._beta = settings, settings.beta
        self._rows_per_place = self._held.steps * self._held.envs
        self._tree = SumTree(max_segments * self._rows_per_place)
        self._largest = 1.0
        self._restored: list[Array] = []

    def set_priorities(self, sample: ReplaySample, priorities: Array) -> None:
        """Set `priorities [B]` (|TD error|) of the rows whose segment is still held."""
        assert priorities.shape == sample.rows.shape, (priorities.shape, sample.rows.shape)
        alive = self._held.generations[sample.rows // self._rows_per_place] == sample.generations
        mass = (np.abs(priorities[alive].astype(np.float64)) + self._settings.epsilon) ** self._settings.alpha
        if len(mass):
            self._tree.set(sample.rows[alive], mass)
            self._largest = max(self._largest, float(mass.max()))

    def anneal(self, beta: float) -> None:
        """Set the exponent of the importance weights."""
        self._beta = beta

    def state(self) -> dict[str, Array]:
        """Also every held row's mass, oldest segment first, and the largest mass seen."""
        held = self._held
        places = np.arange(held.oldest, held.added) % held.places
        leaves = places[:, None] * self._rows_per_place + np.arange(self._rows_per_place)
        return super().state() | {"replay.mass": self._tree.get(leaves), "replay.largest": np.array([self._largest])}

    def load_state(self, state: Weights) -> None:
        """Call on an empty replay; the segments added next take the masses they had."""
        super().load_state(state)
        self._largest = float(state["replay.largest"][0])
        self._restored = list(state["replay.mass"])

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Array, Array]:
        mix, total = self._settings.uniform_mix, self._tree.total
        rows = self._tree.find(generator.random(batch_size) * total)
        if mix:
            uniform, _ = super()._draw(generator, batch_size)
            rows = np.where(generator.random(batch_size) < mix, uniform, rows)
        probability = (1.0 - mix) * self._tree.get(rows) / total + mix / self.size
        weight = (self.size * probability) ** -self._beta
        return rows, (weight / weight.max()).astype(np.float32)

    def _added(self, place: int) -> None:
        mass = np.zeros(self._rows_per_place)
        start = place * self._rows_per_place
        mass[self._held.valid_rows(place) - start] = self._largest
        self._tree.set_range(start, self._restored.pop(0) if self._restored else mass)

    def _released(self, place: int) -> None:
        self._tree.set_range(place * self._rows_per_place, np.zeros(self._rows_per_place))


def build_replay(
    columns: Mapping[str, Array], capacity: int, seed: int, prioritised: Mapping[str, float] | None
) -> UniformReplay:
    """Uniform, or prioritised by `Algorithm.prioritised`; `capacity` is in env steps, rounded up to segments."""
    _, steps, envs = columns["reward"].shape
    max_segments = -(-capacity // (steps * envs))
    if prioritised is None:
        return UniformReplay(columns, max_segments, seed)
    known = {name: prioritised[name] for name in ("alpha", "beta", "epsilon", "uniform_mix") if name in prioritised}
    return PrioritisedReplay(columns, max_segments, seed, Priorities(**known))
