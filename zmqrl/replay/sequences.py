"""Sequences as what replay draws: consecutive rows inside one segment, with the recurrent state of their start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.ops.returns import sequence_priorities
from zmqrl.replay.base import Observations, SequenceSample
from zmqrl.replay.columns import STATE_PREFIX, extra_columns, state_columns
from zmqrl.replay.held_segments import HeldSegments
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import Array


class Sequences:
    """Item s * N + env of a segment is the sequence of env that begins at row s * stride."""

    def __init__(self, columns: Mapping[str, Array], spec: ReplaySpec) -> None:
        """`spec` fits the columns: `zmqrl.replay.columns.check_columns`."""
        _, steps, self._envs = columns["reward"].shape
        shapes = {name: column.shape[1:] for name, column in columns.items()}
        self._columns, self._observations = columns, Observations(columns)
        self._burn_in, self._rows = spec.burn_in, spec.burn_in + spec.length
        self._max_share = (spec.prioritised or Prioritised()).max_share
        self._starts = np.arange(0, steps - self._rows + 1, spec.every)
        self._learned = self._starts[:, None] + np.arange(self._burn_in, self._rows)
        self._extras = {name: columns[name] for name in extra_columns(shapes)}
        self._states = {
            name.removeprefix(STATE_PREFIX): (columns[name], rows) for name, rows in state_columns(shapes).items()
        }
        self.per_place = len(self._starts) * self._envs

    def drawable(self, slot: int) -> Array:
        """Sequences with a valid row to learn from."""
        return np.flatnonzero(self._columns["valid"][slot][self._learned].any(1))

    def priorities(self, slot: int, name: str) -> Array:
        """Mixed |value| of the column `name` over the rows to learn from, for each sequence."""
        value, valid = self._columns[name][slot][self._learned], self._columns["valid"][slot][self._learned]
        # [starts, length, N] as [length, starts * N]
        delta, mask = (np.moveaxis(array, 1, 0).reshape(array.shape[1], -1) for array in (value, valid))
        return sequence_priorities(delta, mask, self._max_share)

    def read(self, held: HeldSegments, items: Array, weight: Array) -> SequenceSample:
        """The sequences `items`."""
        columns, rows = self._columns, self._rows
        place, within = np.divmod(items, self.per_place)
        start, env = np.divmod(within, self._envs)
        start, slot = self._starts[start], held.slots[place]
        t = start + np.arange(rows + 1)[:, None]
        at = (slot, t[:rows], env)
        valid = columns["valid"][at]
        mask = valid.copy()
        mask[: self._burn_in] = False
        return SequenceSample(
            obs=self._observations.read(slot, t, env),
            action=columns["action"][at],
            reward=columns["reward"][at],
            terminated=columns["terminated"][at],
            truncated=columns["truncated"][at],
            valid=valid,
            reset=self._resets(valid, slot, start, env),
            mask=mask,
            extras={name: column[at] for name, column in self._extras.items()},
            state={name: column[slot, start // every, env] for name, (column, every) in self._states.items()},
            weight=weight,
            rows=items,
            generations=held.generations[place],
        )

    def _resets(self, valid: Array, slot: Array, start: Array, env: Array) -> Array:
        """An episode begins after an autoreset row."""
        before = self._columns["valid"][slot, np.maximum(start - 1, 0), env]
        reset = np.empty((self._rows + 1, len(slot)), dtype=bool)
        reset[0] = ~before & (start > 0)
        np.logical_not(valid, out=reset[1:])
        return reset
