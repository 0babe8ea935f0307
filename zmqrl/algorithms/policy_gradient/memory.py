"""Sequences of a batch for towers with memory, and the state of a critic that no worker computes."""

from __future__ import annotations

from zmqrl.learning import Batch
from zmqrl.loading import Tensor, np
from zmqrl.types import Array, Weights

STATE = "state."
"""Prefix of the entries of a minibatch that hold the state of a tower before the first row of each sequence."""
WHOLE = frozenset({"obs", "reset"})
"""Further entries of sequences that stay `[S, k, ...]`; every other column is a number per row."""


def sequences(column: Tensor, rows: int) -> Tensor:
    """`[T, E, ...]` as `[T / rows E, rows, ...]`."""
    parts = column.reshape(-1, rows, *column.shape[1:])
    return parts.transpose(1, 2).flatten(0, 1).contiguous()


def begins(valid: Array, rows: int) -> Array:
    """Where an episode begins inside a sequence, bool `[T, E]`; the stored state has the beginning of its first row."""
    found = np.zeros_like(valid)
    found[1:] = ~valid[:-1]
    found[::rows] = False
    return found


def flat(rows: Batch) -> dict[str, Tensor]:
    """Numbers per row of all sequences, side by side; what a tower with memory reads stays in sequences."""
    whole = {name for name in rows if name in WHOLE or name.startswith(STATE) or not rows[name].dim()}
    return {name: column if name in whole else column.flatten(0, 1) for name, column in rows.items()}


class CriticState:
    """Recurrent state `[N, size]` of the critic after the newest segment of each vector env, a `Part`."""

    def __init__(self) -> None:
        self._held: dict[int, Array] = {}

    def before(self, vector_env: int, is_begin: Array, size: int) -> Array:
        """State before the next segment; zero where an episode begins (`is_begin [N]`) or nothing is held."""
        held = self._held.get(vector_env, np.zeros((len(is_begin), size), np.float32))
        return np.where(is_begin[:, None], np.float32(0.0), held)

    def keep(self, vector_env: int, state: Array) -> None:
        """Hold the state after a segment."""
        self._held[vector_env] = state

    def state(self) -> dict[str, Array]:
        """For FULL."""
        return {str(vector_env): state.copy() for vector_env, state in self._held.items()}

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""
        self._held = {int(name): held.copy() for name, held in state.items()}
