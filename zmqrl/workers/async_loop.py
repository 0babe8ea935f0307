"""The async loops: the learner takes what is there; leases and the rate limiter pace both sides."""

from __future__ import annotations

from collections.abc import Sequence

from zmqrl.algorithms.base import OffPolicyLearner, OnPolicyLearner
from zmqrl.memory_backends.base import TakenSegment
from zmqrl.replay.base import gather
from zmqrl.replay.limiter import updates_due
from zmqrl.replay.uniform import UniformReplay
from zmqrl.workers.learning import Learning

TAKE_S = 0.2
PUBLISH_EVERY_UPDATES = 16
"""Off-policy: updates between two versions at most, so that workers act with weights a few milliseconds old."""


def run_async_on_policy(learning: Learning) -> str:
    """Train on `batch_segments` at a time, in the order of arrival."""
    learner, size = learning.learner, learning.plan.batch_segments
    assert isinstance(learner, OnPolicyLearner)
    pending: list[TakenSegment] = []
    while True:
        while len(pending) < size:
            pending += learning.take(TAKE_S)
            reason = learning.end.reason
            if reason is not None and len(pending) < size:
                return _ended_between_batches(learning, reason)
            learning.emit_metrics()
        batch_segments, pending = pending[:size], pending[size:]
        batch = gather(learning.source.columns, [s.ref for s in batch_segments], [s.meta for s in batch_segments])
        learning.source.release([segment.ref for segment in batch_segments])
        learning.note(batch)
        learning.channel.report(learning.counters.env_steps, learning.counters.updates)
        learning.learned(learner.learn(batch, learning.progress))
        reason = learning.boundary()
        learning.publish(announce=reason is None)
        if reason is not None or learning.fulls.due():
            learning.save_full(last=reason is not None)
        if reason is not None:
            return reason


def run_async_off_policy(learning: Learning, replay: UniformReplay) -> str:
    """Take all there is, update as often as the ratio allows, publish in between."""
    learner, section = learning.learner, learning.config.replay
    assert isinstance(learner, OffPolicyLearner)
    due = 0
    while True:
        taken = learning.take(0.0 if due > 0 else TAKE_S)
        if not replay.segments:  # all that a predecessor held, in the order of vector envs
            taken.sort(key=lambda segment: (segment.meta.version, segment.meta.id))
        if taken:
            _observe(learning, learner, [s for s in taken if not learning.was_used(s.meta)])
            learning.source.release([ref for s in taken if (ref := replay.add(s.ref, s.meta)) is not None])
        counters = learning.counters
        due = updates_due(
            counters.env_steps,
            counters.updates + counters.updates_forgiven,
            learning_starts=section.learning_starts,
            ratio=section.ratio,
            most=PUBLISH_EVERY_UPDATES,
        )
        if due > 0 and replay.size:
            learning.learned(learner.update(replay, due, learning.progress))
        learning.channel.report(counters.env_steps, counters.updates + counters.updates_forgiven)
        if due <= 0 and learning.reason_to_end() is None:
            learning.emit_metrics()
            continue
        reason = learning.boundary()
        learning.publish(announce=reason is None)
        _save_full(learning, replay, last=reason is not None)
        if reason is not None:
            return reason


def _save_full(learning: Learning, replay: UniformReplay, last: bool) -> None:
    """With replay when configured: alongside training, except for the last one."""
    with_replay = learning.config.store.async_replay
    if last:
        learning.fulls.is_writing(wait=True)
        learning.save_full(last=True, replay=replay if with_replay else None)
    elif with_replay and not learning.fulls.is_writing() and learning.fulls.due():
        learning.save_full_beside(replay)
    elif not with_replay and learning.fulls.due():
        learning.save_full()


def _observe(learning: Learning, learner: OffPolicyLearner, segments: Sequence[TakenSegment]) -> None:
    if segments:
        batch = gather(learning.source.columns, [s.ref for s in segments], [s.meta for s in segments])
        learning.note(batch)
        learner.observe(batch)


def _ended_between_batches(learning: Learning, reason: str) -> str:
    """The version that is current is the last; FULL goes with it."""
    learning.save_full(last=True)
    learning.publish(announce=False)
    return reason
