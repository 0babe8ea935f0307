"""The action and the reward of the row before, as a network sees them: recurrent state of `ActingSpec.previous`."""

from __future__ import annotations

from zmqrl.acting.base import State
from zmqrl.loading import np
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.types import PREVIOUS, Array, SpaceSpec


class PreviousStep:
    """Writes the state `previous`, float32 `[rows, P]`: the numbers of the stored action, then the reward.

    An entry of a discrete action is one-hot. Nothing is normalised or clipped. As all recurrent state it is zero where
    an episode begins, and in the first row of an env.
    """

    def __init__(self, action: SpaceSpec, rows: int) -> None:
        self._action = NumpyInput(network_input(action), action, rows)

    def write(self, state: State, action: Array, reward: Array | float) -> None:
        """Replace the state by what follows a row with `action [rows, ...]`, as stored, and `reward [rows]`."""
        held = state[PREVIOUS]
        held[:, :-1] = self._action.take(action)
        held[:, -1] = reward


def previous_rows(space: SpaceSpec, first: Array, action: Array, reward: Array, valid: Array) -> Array:
    """The state `previous` of consecutive rows and of the observation after them, float32 `[L + 1, B, P]`.

    Args:
        space: Of the actions.
        first: Stored state of the first row, `[B, P]`.
        action: `[L, B, ...]`.
        reward: `[L, B]`.
        valid: `[L, B]`; an episode begins after a row that is not valid.
    """
    rows: Array = np.empty((len(reward) + 1, *first.shape), np.float32)
    rows[0] = first
    following = {PREVIOUS: rows[1:].reshape(-1, first.shape[1])}  # a view
    PreviousStep(space, reward.size).write(following, action.reshape(-1, *space.shape), reward.reshape(-1))
    rows[1:][~valid] = 0.0
    return rows
