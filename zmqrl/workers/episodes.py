"""What the learner knows of episodes from the segments it took: their returns, and the position of every env.

The two have different order: returns are counted in batch order (`EpisodeBook.observe`), so that they do not depend
on who arrived first; the position of an env advances with each segment taken (`advance`), so that a successor can be
notified immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import numpy as np

from zmqrl.envs.base import EnvSlotState
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import STATE_COLUMN, Array
from zmqrl.workers.action_history import ActionHistory

RECORD_COLUMNS = ("action", "terminated", "truncated")
"""What `advance` reads of every segment."""
RECORD_STATES = ("state", "obs")
"""What FULL holds of each record of envs that report their states."""
RECORD_ARRAYS = ("episode", "resetting", "begun", "place")
"""What FULL holds of each record alongside its actions."""
WINDOW = 100
"""Finished episodes in the mean return."""


class EnvRecord:
    """Where the N envs of one vector env stand: episode, and the actions since its reset.

    Actions of the N envs are kept side by side, as long as one of them needs a row.
    """

    def __init__(self, num_envs: int, keep_actions: bool, keep_states: bool = False) -> None:
        """`keep_states`: the envs report their states, which take the place of the actions."""
        self._keep_actions, self._keep_states = keep_actions and not keep_states, keep_states
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
        self.before: dict[str, Array] = {}
        """`arrays` before the last segment."""

    def advance(self, meta: SegmentMeta, columns: Mapping[str, Array]) -> None:
        """Continue by one segment: `action [T, N, ...]`, `terminated` and `truncated [T, N]`."""
        self.before = self.arrays()
        self.next_index = meta.id.index + 1
        exact = self._keep_actions or self._keep_states
        if not exact and meta.id.incarnation != self._incarnation:
            if self._incarnation >= 0:  # the envs began their next episodes afresh
                self._episode += 1
                self._resetting[:] = False
            self._incarnation = meta.id.incarnation
        done = columns["terminated"] | columns["truncated"]
        steps = len(done)
        if self._keep_actions:
            self._actions.append(columns["action"])
        if self._keep_states:
            self._state, self._obs = np.array(columns[STATE_COLUMN][0]), np.array(columns["obs"][-1])
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
            )
            for env in range(len(self._episode))
        )

    def _stored_state(self, env: int) -> EnvSlotState:
        episode = int(self._episode[env])
        if self._state is None or self._obs is None:
            return EnvSlotState(episode)
        elapsed, resetting = self._rows - int(self._begun[env]), bool(self._resetting[env])
        return EnvSlotState(episode, None, resetting, self._state[env], self._obs[env], max(0, elapsed))

    def arrays(self) -> dict[str, Array]:
        """For FULL. What they hold stays as it is when the record moves on."""
        actions, first = self._actions.view(), self._actions.first
        place = np.array([self.next_index, self._incarnation])
        stored = {
            "episode": self._episode.copy(),
            "resetting": self._resetting.copy(),
            "begun": self._begun - first,
            "place": place,
        }
        if self._state is not None and self._obs is not None:
            begun = self._begun - self._rows  # counted from here: rows of earlier segments are not kept
            return {**stored, "begun": begun, "state": self._state, "obs": self._obs}
        return stored if actions is None else {**stored, "actions": actions}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` gave."""
        self._episode, self._resetting = np.array(arrays["episode"]), np.array(arrays["resetting"])
        self._begun, self._rows = np.array(arrays["begun"]), int(arrays["begun"].max(initial=0))
        self.next_index, self._incarnation = arrays["place"].tolist()
        by_actions = self._keep_actions or (self._keep_states and "state" not in arrays)  # FULL of before the pair
        self._actions.load(arrays.get("actions") if by_actions else None)
        if "actions" in arrays:
            self._rows = len(arrays["actions"])
        if self._keep_states and "state" in arrays:
            self._state, self._obs, self._rows = np.array(arrays["state"]), np.array(arrays["obs"]), 0


class EpisodeBook:
    """Returns and lengths of training episodes, and the records of all vector envs. The learner's thread only."""

    def __init__(self, vector_envs: int, num_envs: int, replayable: bool = True, saves_state: bool = False) -> None:
        """`replayable` is false in async: there a new incarnation begins afresh and no actions are kept.

        `saves_state`: segments have the envs' states, and no actions are kept either.
        """
        self._num_envs = num_envs
        self._replayable = replayable
        self.record_columns = (*RECORD_COLUMNS, *((STATE_COLUMN, "obs") if saves_state else ()))
        """What `advance` reads of a segment."""
        self._records = [EnvRecord(num_envs, replayable, saves_state) for _ in range(vector_envs)]
        self._running = np.zeros((vector_envs, num_envs), np.float64)
        self._length = np.zeros((vector_envs, num_envs), np.int64)
        self._incarnation = np.full(vector_envs, -1, np.int64)
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.total = 0
        """Finished episodes."""

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `WINDOW` finished episodes, of fewer while there are fewer; None before the first."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the same episodes."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def advance(self, meta: SegmentMeta, columns: Mapping[str, Array]) -> None:
        """A segment was taken: move its vector env's record on. `columns` holds at least `record_columns`."""
        self._records[meta.id.vector_env].advance(meta, columns)

    def record(self, vector_env: int) -> tuple[int, tuple[EnvSlotState, ...]]:
        """Index of the segment that a successor of `vector_env` writes first, and where its envs start."""
        record = self._records[vector_env]
        return record.next_index, record.states()

    def observe(self, batch: SegmentBatch) -> None:
        """Count the rewards of `batch`, in its order."""
        columns, envs = batch.columns, self._num_envs
        done: Array = columns["terminated"] | columns["truncated"]
        any_done: Array = np.asarray(done.any(axis=0))
        for place, meta in enumerate(batch.metas):
            cut = slice(place * envs, (place + 1) * envs)
            vector_env, incarnation = meta.id.vector_env, meta.id.incarnation
            if not self._replayable and incarnation != self._incarnation[vector_env]:
                self._running[vector_env], self._length[vector_env] = 0.0, 0
            self._incarnation[vector_env] = incarnation
            reward = columns["reward"][:, cut]
            if any_done[cut].any():
                self._finish(vector_env, reward, done[:, cut], columns["valid"][:, cut])
            else:
                self._running[vector_env] += reward.sum(axis=0, dtype=np.float64)
                self._length[vector_env] += columns["valid"][:, cut].sum(axis=0)

    def arrays(self, without: Collection[int] = ()) -> dict[str, Array]:
        """For FULL. Of the vector envs `without` the record before the last segment, of the others the current one."""
        arrays: dict[str, Array] = {
            "running": self._running,
            "length": self._length,
            "incarnation": self._incarnation,
            "returns": np.array(self.returns, np.float64),
            "lengths": np.array(self.lengths, np.int64),
            "total": np.array(self.total),
        }
        records = [record.before if v in without else record.arrays() for v, record in enumerate(self._records)]
        arrays.update({name: np.stack([record[name] for record in records]) for name in RECORD_ARRAYS})
        for name in RECORD_STATES:
            known = [record[name] for record in records if name in record]
            if known:
                arrays[name] = np.stack([record.get(name, np.zeros_like(known[0])) for record in records])
                arrays["has_state"] = np.array([name in record for record in records])
        actions = [record["actions"] for record in records if "actions" in record]
        arrays["action_rows"] = np.array([len(record.get("actions", ())) for record in records], np.int64)
        # Side by side in one array: FULL is written every round of sync, and each array costs.
        return {**arrays, "actions": np.concatenate(actions)} if actions else arrays

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` gave; vector envs that were not there then stay fresh."""
        known = min(len(self._records), len(arrays["running"]))
        self._running[:known] = arrays["running"][:known]
        self._length[:known] = arrays["length"][:known]
        self._incarnation[:known] = arrays["incarnation"][:known]
        self.returns = deque(arrays["returns"].tolist(), maxlen=WINDOW)
        self.lengths = deque(arrays["lengths"].tolist(), maxlen=WINDOW)
        self.total = int(arrays["total"])
        ends = np.cumsum(arrays["action_rows"])
        for vector_env in range(known):
            own = {name: arrays[name][vector_env] for name in RECORD_ARRAYS}
            if "has_state" in arrays and arrays["has_state"][vector_env]:
                own |= {name: arrays[name][vector_env] for name in RECORD_STATES}
            rows = int(arrays["action_rows"][vector_env])
            if rows:
                own["actions"] = arrays["actions"][int(ends[vector_env]) - rows : int(ends[vector_env])]
            self._records[vector_env].load_arrays(own)

    def _finish(self, vector_env: int, reward: Array, done: Array, valid: Array) -> None:
        sums, counts = reward.cumsum(axis=0, dtype=np.float64), valid.cumsum(axis=0)
        running, length = self._running[vector_env], self._length[vector_env]
        for t, env in zip(*(axis.tolist() for axis in done.nonzero()), strict=True):
            self.returns.append(float(running[env] + sums[t, env]))
            self.lengths.append(int(length[env] + counts[t, env]))
            self.total += 1
            running[env], length[env] = -sums[t, env], -counts[t, env]
        running += sums[-1]
        length += counts[-1]
