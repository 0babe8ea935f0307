"""Where the envs of one vector env are, from the segments that were taken: from here a successor continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from zmqrl.envs.base import AT_RESET, EnvSlotState, Numbers
from zmqrl.types import STATE_COLUMN, Array, SegmentMeta

FIRST_CAPACITY = 64
"""Rows of actions."""


class ActionHistory:
    """The actions of one vector env that a successor would have to repeat: a window of rows that grows at its end.

    Rows `[N, ...]` from `first` on, all N envs side by side. Small whole numbers are kept as bytes.

    Appending and reading cost what they move: FULL reads the window every round of sync.
    """

    def __init__(self) -> None:
        self.first = 0
        """Row, counted over all segments, of the oldest action kept."""
        self._begin = self._end = 0
        self._rows: Array | None = None

    def append(self, actions: Array) -> None:
        """Add `actions [T, N, ...]`."""
        rows = self._room_for(actions)
        rows[self._end : self._end + len(actions)] = actions
        self._end += len(actions)

    def forget_before(self, row: int) -> None:
        """Rows below `row` are no longer needed."""
        gone = min(max(0, row - self.first), self._end - self._begin)
        self._begin += gone
        self.first += gone

    def view(self) -> Array | None:
        """The rows kept, without a copy, and never written again: others are added behind. None when there are none."""
        return None if self._rows is None or self._begin == self._end else self._rows[self._begin : self._end]

    def load(self, actions: Array | None) -> None:
        """Begin again at row 0 with `actions`."""
        self.first = self._begin = self._end = 0
        self._rows = None
        if actions is not None:
            self.append(actions)

    def _room_for(self, actions: Array) -> Array:
        old = self._rows
        dtype = _dtype_of(actions) if old is None else np.promote_types(old.dtype, _dtype_of(actions))
        kept, need = self._end - self._begin, len(actions)
        if old is not None and old.dtype == dtype and self._end + need <= len(old):
            return old
        capacity = max(FIRST_CAPACITY, 2 * (kept + need))
        rows: Array = np.empty((capacity, *actions.shape[1:]), dtype)
        if old is not None:
            rows[:kept] = old[self._begin : self._end]
        self._rows, self._begin, self._end = rows, 0, kept
        return rows


def _dtype_of(actions: Array) -> np.dtype[np.generic]:
    if actions.dtype.kind in "iu" and actions.size and actions.min() >= 0 and actions.max() < 256:
        return np.dtype(np.uint8)
    return actions.dtype


class EnvSlotRecord:
    """Where the N envs of one vector env are: episode, and the actions since its reset.

    Actions of the N envs are kept side by side, as long as one of them needs a row.
    """

    def __init__(
        self,
        num_envs: int,
        keep_actions: bool,
        keep_states: bool = False,
        acting_states: Sequence[str] = (),
        slots_per_env: int = 1,
    ) -> None:
        """A record of envs at the beginning of their first episodes.

        Args:
            num_envs: N.
            keep_actions: A successor continues the running episodes.
            keep_states: The envs report their states, which take the place of the actions.
            acting_states: Columns with the recurrent state at the end of a segment, which goes with either.
            slots_per_env: Slots that begin their episodes together, the agents of one env: its episode ends with the
                last of theirs.
        """
        self._group = slots_per_env
        self._keep_actions, self._keep_states = keep_actions and not keep_states, keep_states
        self._acting_columns = tuple(acting_states) if keep_actions or keep_states else ()
        self._acting: Array | None = None
        """float32 `[N, S]`."""
        self._state: Array | None = None
        self._obs: Array | None = None
        self._episode: Array = np.zeros(num_envs, np.int64)
        self._resetting: Array = np.zeros(num_envs, bool)
        self._begun: Array = np.zeros(num_envs, np.int64)
        """Row, counted over all segments, of the first action of the current episode."""
        self._rows = 0
        self._incarnation = -1
        self.next_index = 0
        """Index of the segment after the last one."""
        self._actions = ActionHistory()
        self._numbers: list[tuple[int, Numbers]] = []
        """What the envs received, each before this row; the first ones were received before the oldest reset needed."""
        self._arrays: dict[str, Array] | None = None
        """What `arrays` returned since the last segment: in sync both FULL and the next segment need it."""
        self.before: dict[str, Array] = {}
        """`arrays` before the last segment."""

    def advance(self, meta: SegmentMeta, columns: Mapping[str, Array], numbers: Numbers | None = None) -> None:
        """Continue by a segment: `action [T, N, ...]`, `terminated` and `truncated [T, N]`; `numbers` precede it."""
        self.before, self._arrays = self.arrays(), None
        self.next_index = meta.id.index + 1
        exact = self._keep_actions or self._keep_states
        if not exact and meta.id.incarnation != self._incarnation:
            if self._incarnation >= 0:  # the envs began their next episodes afresh
                self._episode += 1
                self._resetting[:] = False
            self._incarnation = meta.id.incarnation
        done = columns["terminated"] | columns["truncated"]
        steps = len(done)
        if self._group > 1:
            done = done.reshape(steps, -1, self._group).all(axis=2).repeat(self._group, axis=1)
        if self._keep_actions:
            self._actions.append(columns["action"])
        if self._keep_states:
            self._state, self._obs = np.array(columns[STATE_COLUMN][0]), np.array(columns["obs"][-1])
        if self._acting_columns:
            self._acting = np.concatenate([columns[name][0] for name in self._acting_columns], axis=1)
        if self._resetting.any():
            self._episode += self._resetting
            self._begun[self._resetting] = self._rows + 1
            self._resetting[:] = False
        if done.any():
            for t, env in zip(*(axis.tolist() for axis in done.nonzero()), strict=True):
                if t == steps - 1:
                    self._resetting[env] = True
                else:  # the row after it resets
                    self._episode[env] += 1
                    self._begun[env] = self._rows + t + 2
        self._rows += steps
        self._actions.forget_before(int(self._begun.min()))
        if numbers is not None and exact:
            self._receive(numbers, self._rows - steps)

    def _receive(self, numbers: Numbers, row: int) -> None:
        self._numbers.append((row, numbers))
        oldest = row + 1 if self._keep_states else int(self._begun.min())
        while len(self._numbers) > 1 and self._numbers[1][0] < oldest:
            del self._numbers[0]

    def states(self) -> tuple[EnvSlotState, ...]:
        """Enough for a successor to continue; without actions each env continues with its next episode."""
        actions, first = self._actions.view(), self._actions.first
        if self._keep_states and (self._state is not None or actions is None):
            return tuple(map(self._stored_state, range(len(self._episode))))
        if not (self._keep_actions or self._keep_states):
            return tuple(EnvSlotState(int(episode) + 1) for episode in self._episode)
        return tuple(
            EnvSlotState(
                int(self._episode[env]),
                None if actions is None else np.ascontiguousarray(actions[int(self._begun[env]) - first :, env]),
                bool(self._resetting[env]),
                acting_state=self._acting_state(env),
                numbers=self._numbers_since(int(self._begun[env])),
            )
            for env in range(len(self._episode))
        )

    def _stored_state(self, env: int) -> EnvSlotState:
        episode = int(self._episode[env])
        if self._state is None or self._obs is None:
            return EnvSlotState(episode)
        elapsed, resetting = self._rows - int(self._begun[env]), bool(self._resetting[env])
        state, obs = self._state[env], self._obs[env]
        numbers = self._numbers_since(self._rows)
        return EnvSlotState(episode, None, resetting, state, obs, max(0, elapsed), self._acting_state(env), numbers)

    def _numbers_since(self, begun: int) -> tuple[tuple[int, Numbers], ...]:
        """What an env received from the reset before row `begun` on; those of row 0 were received before any reset."""
        steps = [(row - begun, numbers) for row, numbers in self._numbers]
        last = max((place for place, (step, _) in enumerate(steps) if step <= AT_RESET), default=0)
        return tuple((AT_RESET if place == last else step, n) for place, (step, n) in enumerate(steps) if place >= last)

    def _acting_state(self, env: int) -> Array | None:
        return None if self._acting is None else self._acting[env]

    def arrays(self) -> dict[str, Array]:
        """For FULL. What they hold stays as it is when the record moves on."""
        if self._arrays is None:
            self._arrays = self._current_arrays()
        return self._arrays

    def _current_arrays(self) -> dict[str, Array]:
        actions, has_state = self._actions.view(), self._state is not None and self._obs is not None
        # Rows are counted from the first that is kept; with states no row is.
        first = self._rows if has_state else self._actions.first
        stored: dict[str, Array] = {
            "episode": self._episode.copy(),
            "resetting": self._resetting.copy(),
            "begun": self._begun - first,
            "place": np.array([self.next_index, self._incarnation]),
        }
        if self._acting is not None:
            stored["acting_state"] = self._acting
        if self._numbers:
            text = json.dumps([(row - first, numbers) for row, numbers in self._numbers])
            stored["numbers"] = np.frombuffer(text.encode(), np.uint8)
        if self._state is not None and self._obs is not None:
            return {**stored, "state": self._state, "obs": self._obs}
        return stored if actions is None else {**stored, "actions": actions}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` gave."""
        self._arrays = None
        self._episode, self._resetting = np.array(arrays["episode"]), np.array(arrays["resetting"])
        self._begun, self._rows = np.array(arrays["begun"]), int(arrays["begun"].max(initial=0))
        self.next_index, self._incarnation = arrays["place"].tolist()
        by_actions = self._keep_actions or (self._keep_states and "state" not in arrays)  # FULL of before the pair
        self._actions.load(arrays.get("actions") if by_actions else None)
        if "actions" in arrays:
            self._rows = len(arrays["actions"])
        if self._acting_columns and "acting_state" in arrays:
            self._acting = np.array(arrays["acting_state"])
        if self._keep_states and "state" in arrays:
            self._state, self._obs, self._rows = np.array(arrays["state"]), np.array(arrays["obs"]), 0
        if (self._keep_actions or self._keep_states) and "numbers" in arrays:
            self._numbers = [(row, numbers) for row, numbers in json.loads(bytes(arrays["numbers"]))]
