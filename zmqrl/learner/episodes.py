"""What the learner knows of episodes from the segments that it took: their returns, and the position of every env.

The two have different order: returns are counted in batch order (`EpisodeTracker.observe`), so that they do not depend
on which segment arrived first; the position of an env advances with each segment taken (`advance`), so that a successor
can be notified immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zmqrl.envs.base import EnvSlotState, Numbers
from zmqrl.learner.env_slot_record import EnvSlotRecord
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import REPORT_COLUMN, STATE_COLUMN, Array, SegmentId, SegmentMeta

if TYPE_CHECKING:
    from zmqrl.config.sections import EnvSection
    from zmqrl.metrics.episode_reports import EpisodeReports

RECORD_COLUMNS = ("action", "terminated", "truncated")
"""What `advance` reads of every segment."""
RECORD_STATES = ("state", "obs")
"""What FULL holds of each record of envs that report their states."""
RECORD_ARRAYS = ("episode", "resetting", "begun", "place")
"""What FULL holds of each record alongside its actions."""
WINDOW = 100
"""Finished episodes in the mean return."""


class EndedEpisode(NamedTuple):
    """A training episode that has ended."""

    segment: SegmentId
    """The one in which it ended."""
    env: int
    """Its place in the vector env."""
    return_: float
    length: int


class EpisodeTracker:
    """Returns and lengths of training episodes, and the records of all vector envs. The learner's thread only."""

    def __init__(
        self,
        vector_envs: int,
        num_envs: int,
        replayable: bool = True,
        saves_state: bool = False,
        acting_states: Sequence[str] = (),
        slots_per_env: int = 1,
        section: EnvSection | None = None,
    ) -> None:
        """`replayable` is false in async: there a new incarnation begins afresh and no actions are kept.

        `saves_state`: segments have the envs' states, and no actions are kept either. `acting_states`: columns of
        recurrent state at the end of a segment. `slots_per_env`: of the env, whose agents' episodes count one by one.
        `section`: its `report` is reduced too.
        """
        self._num_envs = num_envs
        self.reports: EpisodeReports | None = None
        if section is not None and section.report:
            from zmqrl.metrics.episode_reports import EpisodeReports  # most runs start without

            self.reports = EpisodeReports(section.report, section.id, (vector_envs, num_envs), WINDOW)
        self._replayable = replayable
        acting_states = tuple(acting_states) if replayable else ()
        self.record_columns = (*RECORD_COLUMNS, *((STATE_COLUMN, "obs") if saves_state else ()), *acting_states)
        """What `advance` reads of a segment."""
        self._records = [
            EnvSlotRecord(num_envs, replayable, saves_state, acting_states, slots_per_env) for _ in range(vector_envs)
        ]
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
    def mean_of_full_window(self) -> float | None:
        """The same; None before there were `WINDOW` episodes: a run is not solved by a few of them."""
        return self.mean_return if len(self.returns) >= WINDOW else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the same episodes."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def advance(self, meta: SegmentMeta, columns: Mapping[str, Array], numbers: Numbers | None = None) -> None:
        """A segment was taken: move its vector env's record on. `columns` holds at least `record_columns`.

        `numbers`: what the envs received before it, if they receive any.
        """
        self._records[meta.id.vector_env].advance(meta, columns, numbers)

    def record(self, vector_env: int) -> tuple[int, tuple[EnvSlotState, ...]]:
        """Index of the segment that a successor of `vector_env` writes first, and where its envs start."""
        record = self._records[vector_env]
        return record.next_index, record.states()

    def observe(self, batch: SegmentBatch) -> list[EndedEpisode]:
        """Count the rewards of `batch`, in its order; the episodes that ended in it."""
        ended: list[EndedEpisode] = []
        columns, envs = batch.columns, self._num_envs
        done: Array = (columns["terminated"] | columns["truncated"]) & columns["valid"]
        any_done: Array = np.asarray(done.any(axis=0))
        for place, meta in enumerate(batch.metas):
            cut = slice(place * envs, (place + 1) * envs)
            vector_env, incarnation = meta.id.vector_env, meta.id.incarnation
            if not self._replayable and incarnation != self._incarnation[vector_env]:
                self._running[vector_env], self._length[vector_env] = 0.0, 0
                if self.reports is not None:
                    self.reports.begin_anew(vector_env)
            self._incarnation[vector_env] = incarnation
            if self.reports is not None:
                self.reports.observe(vector_env, columns[REPORT_COLUMN][:, cut], columns["valid"][:, cut], done[:, cut])
            reward = columns["reward"][:, cut]
            if any_done[cut].any():
                episodes = self._finish(vector_env, reward, done[:, cut], columns["valid"][:, cut])
                ended += [EndedEpisode(meta.id, *episode) for episode in episodes]
            else:
                self._running[vector_env] += reward.sum(axis=0, dtype=np.float64)
                self._length[vector_env] += columns["valid"][:, cut].sum(axis=0)
        return ended

    def arrays(self, without: Collection[int] = ()) -> dict[str, Array]:
        """For FULL. Of the vector envs `without` the record before the last segment, of the others the current one."""
        arrays: dict[str, Array] = {
            "running": self._running,
            "length": self._length,
            "incarnation": self._incarnation,
            "returns": np.array(self.returns, np.float64),
            "lengths": np.array(self.lengths, np.int64),
            "total": np.array(self.total),
            **({} if self.reports is None else self.reports.arrays()),
        }
        records = [record.before if v in without else record.arrays() for v, record in enumerate(self._records)]
        arrays.update({name: np.stack([record[name] for record in records]) for name in RECORD_ARRAYS})
        for name in RECORD_STATES:
            known = [record[name] for record in records if name in record]
            if known:
                arrays[name] = np.stack([record.get(name, np.zeros_like(known[0])) for record in records])
                arrays["has_state"] = np.array([name in record for record in records])
        acting = [record["acting_state"] for record in records if "acting_state" in record]
        if acting:  # zeros are the state of a vector env without a segment
            zeros = np.zeros_like(acting[0])
            arrays["acting_state"] = np.stack([record.get("acting_state", zeros) for record in records])
        if any("numbers" in record for record in records):
            lines = (bytes(record["numbers"]) if "numbers" in record else b"[]" for record in records)
            arrays["numbers"] = np.frombuffer(b"\n".join(lines), np.uint8)
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
        if self.reports is not None:
            self.reports.load_arrays(arrays)
        ends = np.cumsum(arrays["action_rows"])
        numbers = bytes(arrays["numbers"]).split(b"\n") if "numbers" in arrays else []
        for vector_env in range(known):
            own = {name: arrays[name][vector_env] for name in RECORD_ARRAYS}
            if "has_state" in arrays and arrays["has_state"][vector_env]:
                own |= {name: arrays[name][vector_env] for name in RECORD_STATES}
            if "acting_state" in arrays:
                own["acting_state"] = arrays["acting_state"][vector_env]
            if numbers:
                own["numbers"] = np.frombuffer(numbers[vector_env], np.uint8)
            rows = int(arrays["action_rows"][vector_env])
            if rows:
                own["actions"] = arrays["actions"][int(ends[vector_env]) - rows : int(ends[vector_env])]
            self._records[vector_env].load_arrays(own)

    def _finish(self, vector_env: int, reward: Array, done: Array, valid: Array) -> list[tuple[int, float, int]]:
        """Env, return and length of each episode that ends."""
        sums, counts = reward.cumsum(axis=0, dtype=np.float64), valid.cumsum(axis=0)
        running, length = self._running[vector_env], self._length[vector_env]
        ended = []
        for t, env in zip(*(axis.tolist() for axis in done.nonzero()), strict=True):
            ended.append((env, float(running[env] + sums[t, env]), int(length[env] + counts[t, env])))
            running[env], length[env] = -sums[t, env], -counts[t, env]
        running += sums[-1]
        length += counts[-1]
        self.returns.extend(return_ for _, return_, _ in ended)
        self.lengths.extend(steps for _, _, steps in ended)
        self.total += len(ended)
        return ended
