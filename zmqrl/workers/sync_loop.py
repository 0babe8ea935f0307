"""The sync loop, also single mode's: a round is one segment per vector env, acted with the current version."""

from __future__ import annotations

import time

from zmqrl.algorithms.base import OffPolicyLearner, OnPolicyLearner
from zmqrl.memory_backends.base import TakenSegment
from zmqrl.replay.base import gather
from zmqrl.replay.limiter import NO_LIMIT, updates_due
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import SlotRef
from zmqrl.workers.learning import Learning

TAKE_S = 0.2
REVIEW_S = 3.0
"""After so long without a segment the learner looks whether what it published can still be read."""


def run_sync(learning: Learning, replay: UniformReplay | None) -> str:
    """Train round by round until a reason to stop; the last version is saved and not announced."""
    loop = _SyncLoop(learning, replay)
    reason: str | None = None
    while reason is None:
        segments = loop.gather_round()
        if isinstance(segments, str):
            loop.write_last_boundary()
            return segments
        released = loop.train(segments)
        reason = learning.boundary()
        loop.write_full(last=reason is not None)
        learning.leave_word()  # first: a successor must know that slots which FULL names may be gone
        learning.source.release(released)
        learning.publish(announce=reason is None)
    return reason


class _SyncLoop:
    def __init__(self, learning: Learning, replay: UniformReplay | None) -> None:
        self._learning = learning
        self._replay = replay
        self._round: dict[int, TakenSegment] = {}
        self._full_bytes = 0

    def gather_round(self) -> list[TakenSegment] | str:
        """One segment per vector env, in their order; the reason to end when no round comes together in time."""
        learning, n = self._learning, self._learning.counters.n
        quota = learning.config.env.vector_envs
        review_at = time.monotonic() + REVIEW_S
        while len(self._round) < quota:
            taken = learning.take(TAKE_S)
            if taken:
                review_at = time.monotonic() + REVIEW_S
            elif time.monotonic() >= review_at:
                review_at = time.monotonic() + REVIEW_S
                learning.review_published()
            for segment in taken:
                id = segment.meta.id
                if id.index == n and id.incarnation >= learning.oldest_incarnation:
                    self._round[segment.meta.id.vector_env] = segment
                    learning.advance(segment)
                else:  # of a round that FULL covers, or that we went back from
                    learning.source.release([segment.ref])
            learning.answer_take_ups()
            overdue = learning.end.overdue
            if overdue is not None and len(self._round) < quota:
                return overdue
        segments = [self._round[v] for v in range(quota)]
        self._round = {}
        return segments

    def train(self, segments: list[TakenSegment]) -> list[SlotRef]:
        """One round of learning; returns the slots that are no longer needed."""
        learning = self._learning
        batch = gather(learning.source.columns, [s.ref for s in segments], [s.meta for s in segments])
        learning.note(batch)
        learner = learning.learner
        if isinstance(learner, OnPolicyLearner):
            learning.learned(learner.learn(batch, learning.progress))
            return [s.ref for s in segments]
        assert isinstance(learner, OffPolicyLearner) and self._replay is not None
        learner.observe(batch)
        evicted = [ref for s in segments if (ref := self._replay.add(s.ref, s.meta)) is not None]
        section, counters = learning.config.replay, learning.counters
        due = updates_due(
            counters.env_steps,
            counters.updates,
            learning_starts=section.learning_starts,
            ratio=section.ratio,
            most=NO_LIMIT,
        )
        if due > 0 and self._replay.size:
            learning.learned(learner.update(self._replay, due, learning.progress))
        return evicted

    def write_full(self, last: bool) -> None:
        """FULL of every round while it is small, else by the clock; with replay always by the clock."""
        learning = self._learning
        small = self._full_bytes <= learning.config.store.sync_full_max_mb * 1e6
        if last or (small and self._replay is None) or learning.fulls.due():
            self._full_bytes = learning.save_full(last, self._replay) or self._full_bytes

    def write_last_boundary(self) -> None:
        """FULL of the last boundary: of the round that did not come together only the env records know."""
        learning = self._learning
        learning.save_full(last=True, replay=self._replay, without=[s.meta.id.vector_env for s in self._round.values()])
