"""Rows as what replay draws: n-step transitions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.ops.returns import n_step_targets
from zmqrl.replay.base import Observations, ReplaySample
from zmqrl.replay.columns import extra_columns
from zmqrl.replay.held_segments import HeldSegments
from zmqrl.types import Array


class Transitions:
    """Item t * N + env of a segment is its row t of env."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        _, self._steps, self._envs = columns["reward"].shape
        self._columns, self._observations = columns, Observations(columns)
        self._extras = {name: columns[name] for name in extra_columns({n: c.shape[1:] for n, c in columns.items()})}
        self.per_place = self._steps * self._envs

    def drawable(self, slot: int) -> Array:
        """Valid rows."""
        return np.flatnonzero(self._columns["valid"][slot])

    def priorities(self, slot: int, name: str) -> Array:
        """|value| of the column `name` for each row."""
        priorities: Array = np.abs(self._columns[name][slot]).reshape(-1)
        return priorities

    def read(self, held: HeldSegments, rows: Array, weight: Array, n_step: int, gamma: float) -> ReplaySample:
        """The transitions that begin with `rows`; they end with their segment."""
        columns = self._columns
        place, within = np.divmod(rows, self.per_place)
        t, env = np.divmod(within, self._envs)
        slot = held.slots[place]
        window = t[:, None] + np.arange(n_step)
        present = window < self._steps
        at = (slot[:, None], np.minimum(window, self._steps - 1), env[:, None])
        flags = (columns["terminated"][at], columns["truncated"][at])
        target = n_step_targets(columns["reward"][at], *flags, present, gamma)
        return ReplaySample(
            obs=self._observations.read(slot, t, env),
            action=columns["action"][slot, t, env],
            n_step_return=target.n_step_return,
            next_obs=self._observations.read(slot, t + target.length, env),
            discount=target.discount,
            weight=weight,
            rows=rows,
            generations=held.generations[place],
            extras={name: column[slot, t, env] for name, column in self._extras.items()},
        )
