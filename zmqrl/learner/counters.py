"""What a run has done, in the counters that a full checkpoint stores, and whether that ends it. No I/O."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.algorithms.base import Progress
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import ReplaySection
from zmqrl.learner.episodes import EndedEpisode, EpisodeTracker
from zmqrl.replay.base import SegmentBatch
from zmqrl.replay.limiter import updates_due
from zmqrl.types import SegmentMeta, Version

MARGIN_S = 0.5
"""How long after `run.max_wall_s` a round that should be complete by then is still waited for."""


@dataclass
class Counters:
    """Progress of the run; the part of FULL that is plain numbers."""

    incarnation: int = 0
    n: int = 0
    env_steps: int = 0
    env_steps_before: int = 0
    """Env steps of earlier arenas: together with what this one has stored they are the run's."""
    updates: int = 0
    updates_offset: int = 0
    """Due when this learner began, and not done; of an async off-policy run."""
    schedule_env_steps: int = 1
    solved_at_env_steps: int | None = None
    solved_at_wall_s: float | None = None
    updates_lost: int = 0
    """Done after a FULL by learners that died before the next one."""
    attempt_started_at: float = 0.0
    """When the attempt was started in whose arena `rows` and `positions` are."""
    rows: list[int] = field(default_factory=list)
    """Rows of each vector env, stored in this arena and used."""
    positions: Sequence[Sequence[int]] = ()
    """(incarnation, index) of the next segment of each vector env that was not used."""
    recorded: int = 0
    """Bytes of the recording of all of this (`run.record`)."""
    episodes_nbytes: int = 0
    """Bytes of `episodes.csv`, likewise (`run.episodes_csv`)."""

    @property
    def version(self) -> Version:
        """The version that is current."""
        return Version(self.incarnation, self.n)

    def stored(self) -> dict[str, Any]:
        """The fields, for FULL; what is returned stays as it is."""
        return dict(vars(self), rows=list(self.rows))

    def updates_due(self, replay: ReplaySection, most: int) -> int:
        """Updates that the replay ratio allows now, `most` at most."""
        return updates_due(
            self.env_steps,
            self.updates + self.updates_offset,
            learning_starts=replay.learning_starts,
            ratio=replay.ratio,
            most=most,
        )


@dataclass
class LagHistogram:
    """Policy lag, in versions, of every segment that was used."""

    counts: Counter[int] = field(default_factory=Counter)

    def observe(self, lags: Iterable[int]) -> None:
        """Count one use per segment."""
        self.counts.update(lags)

    def summary(self) -> dict[str, float]:
        """mean, p50, p99 and max over all uses; zeros before the first."""
        if not self.counts:
            return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
        lags = np.array(sorted(self.counts))
        uses = np.array([self.counts[lag] for lag in lags])
        below = np.cumsum(uses) / uses.sum()
        return {
            "mean": float((lags * uses).sum() / uses.sum()),
            "p50": int(lags[np.searchsorted(below, 0.50)]),
            "p99": int(lags[np.searchsorted(below, 0.99)]),
            "max": int(lags[-1]),
        }


class RunProgress:
    """Counters, policy lags and episodes of the run. The learner's main thread only."""

    def __init__(
        self,
        plan: RunPlan,
        counters: Counters,
        episodes: EpisodeTracker,
        oldest_incarnation: int = 0,
        counted: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`counted`: segments before these (incarnation, index) of each vector env are in `counters.env_steps`."""
        self._run, self._reward_threshold, self._began = plan.config.run, plan.env.reward_threshold, plan.began
        self._by_updates, self._ahead = plan.config.mode.offline, plan.config.mode.rounds_ahead
        self.counters, self.episodes = counters, episodes
        self.oldest_incarnation = oldest_incarnation
        """Segments of earlier ones are abandoned: the learner rolled back."""
        self._counted = counted
        self.record_episodes: Callable[[Iterable[EndedEpisode]], None] | None = None
        """Receives the episodes that ended in a batch (`run.episodes_csv`)."""
        self.lags = LagHistogram()

    @property
    def version(self) -> Version:
        """The version that is current."""
        return self.counters.version

    @property
    def snapshot(self) -> Progress:
        """The counters as the algorithm sees them."""
        c, run = self.counters, self._run
        return Progress(run.seed, c.env_steps, c.updates, c.schedule_env_steps, run.debug, c.version, self._by_updates)

    def is_current(self, meta: SegmentMeta) -> bool:
        """sync: whether the segment is of this round: neither of one that FULL covers, nor of one rolled back from."""
        return meta.id.index == self.counters.n and meta.id.incarnation >= self.oldest_incarnation

    def is_early(self, meta: SegmentMeta) -> bool:
        """pipelined: whether the segment is of a round that follows, and of none rolled back from."""
        rounds = meta.id.index - self.counters.n
        return 0 < rounds <= self._ahead and meta.id.incarnation >= self.oldest_incarnation

    def was_counted(self, meta: SegmentMeta) -> bool:
        """Whether the segment was counted, here or before the FULL that this learner began from."""
        return meta.id[1:] < tuple(self.counters.positions[meta.id.vector_env])

    def count_batch(self, batch: SegmentBatch) -> None:
        """Count a batch that is about to be used."""
        self.lags.observe(max(0, self.counters.n - meta.version.n) for meta in batch.metas)
        self.count(batch.metas)
        ended = self.episodes.observe(batch)
        if self.record_episodes is not None:
            self.record_episodes(ended)

    def count(self, metas: Iterable[SegmentMeta]) -> None:
        """Count env steps of segments that this learner was given."""
        c = self.counters
        positions = [tuple(position) for position in c.positions]
        for meta in metas:
            vector_env, incarnation, index = meta.id
            c.rows[vector_env] += meta.rows
            positions[vector_env] = (incarnation, index + 1)
            if not self._counted or (incarnation, index) >= self._counted[vector_env]:
                c.env_steps += meta.rows
        c.positions = positions

    def advance_version(self) -> None:
        """Pass a version boundary: n + 1."""
        c, mean, threshold = self.counters, self.episodes.mean_of_full_window, self._reward_threshold
        c.n += 1
        if c.solved_at_env_steps is None and mean is not None and threshold is not None and mean >= threshold:
            c.solved_at_env_steps, c.solved_at_wall_s = c.env_steps, time.monotonic() - self._began


class EndConditions:
    """The reasons to end a run: its stop conditions, a stop request, and `run.max_wall_s`.

    Every wait of a loop reads it. A round that is under way is completed if that takes no longer than usual.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._run = plan.config.run
        self._wall_by = plan.began + (plan.config.run.max_wall_s or float("inf"))
        self._stop_grace_s = plan.config.limits.grace_s / 2
        self._stop_at: float | None = None
        self._round_began, self._round_s = time.monotonic(), 0.0

    def request_stop(self) -> None:
        """End at the next opportunity; the second time without the round under way. Safe in a signal handler."""
        if self._stop_at is not None:
            self._stop_grace_s = 0.0
        self._stop_at = self._stop_at or time.monotonic()

    def round_ended(self) -> None:
        """A version boundary was passed: what a round takes is known from the newest one."""
        now = time.monotonic()
        self._round_s, self._round_began = now - self._round_began, now

    @property
    def stop_requested(self) -> bool:
        """Whether the end was requested."""
        return self._stop_at is not None

    def goal_reached(self, progress: RunProgress) -> str | None:
        """The stop condition that the run has met; also read by a learner that begins from the last FULL of a run."""
        counters, run, mean = progress.counters, self._run, progress.episodes.mean_of_full_window
        if run.stop_at_return is not None and mean is not None and mean >= run.stop_at_return:
            return "stop_at_return"
        if counters.env_steps >= run.total_env_steps:
            return "total_env_steps"
        if run.stop_at_updates is not None and counters.updates >= run.stop_at_updates:
            return "stop_at_updates"
        return None

    def reason_at_boundary(self, progress: RunProgress) -> str | None:
        """Why the run is to end at a version boundary that is passed now; None: it continues."""
        return self.goal_reached(progress) or self.reason

    @property
    def reason(self) -> str | None:
        """`max_wall_s` or `stop` once the run is to end at the next boundary, else None."""
        if time.monotonic() >= self._wall_by:
            return "max_wall_s"
        return None if self._stop_at is None else "stop"

    @property
    def overdue(self) -> str | None:
        """The same once no boundary is to be waited for any more: the round under way is abandoned."""
        if time.monotonic() >= self._wall_by + MARGIN_S + self._round_s:
            return "max_wall_s"
        if self._stop_at is not None and time.monotonic() >= self._stop_at + self._stop_grace_s:
            return self.reason
        return None

    def is_overdue(self) -> bool:
        """Whether `overdue` has a reason."""
        return self.overdue is not None
