"""The async loops: the learner takes what is there; leases and the rate limiter pace both sides."""

from __future__ import annotations

import time
from collections.abc import Sequence

from zmqrl.algorithms.base import BaseLearner, OffPolicyLearner, OnPolicyLearner
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.learner.session import Session, hold
from zmqrl.replay.segment_replay import SegmentReplay

TAKE_S = 0.2
PUBLISH_EVERY_UPDATES = 16
"""Off-policy: updates between two versions at most, so that workers act with weights a few milliseconds old."""
PUBLISH_EVERY_S = 0.05
"""Off-policy: seconds between two versions where updates are slow. 16 updates of a large network take 0.1 to 1 s, in
which a worker collects several segments with the same weights."""
PUBLISH_SHARE = 0.02
"""Largest share of the time that more versions than one in `PUBLISH_EVERY_UPDATES` may take: those of a large network
take tens of milliseconds to write."""


class Pace:
    """How many updates are done between two versions: fewer than `PUBLISH_EVERY_UPDATES` if they are slow."""

    def __init__(self) -> None:
        self.most = PUBLISH_EVERY_UPDATES
        """Updates until the next version."""

    def observe(self, updates: int, update_s: float, publish_s: float) -> None:
        """See how long the updates of a version and its publication took."""
        between_s = max(PUBLISH_EVERY_S, publish_s / PUBLISH_SHARE)
        self.most = min(PUBLISH_EVERY_UPDATES, max(1, int(between_s * updates / max(update_s, 1e-9))))


def run_async_on_policy(session: Session, learner: OnPolicyLearner, replay: SegmentReplay | None) -> str:
    """Train on `batch_segments` at a time, in the order of arrival."""
    source, progress, size = session.source, session.progress, session.plan.batch_segments
    pending: list[TakenSegment] = []
    while True:
        while len(pending) < size:
            taken = _take(session, replay, TAKE_S)
            used = [s for s in taken if progress.was_counted(s.meta)]  # replay of a predecessor held them
            source.release(hold(replay, used))
            pending += [s for s in taken if not progress.was_counted(s.meta)]
            reason = session.end.reason
            if reason is not None and len(pending) < size:
                # Between two batches: the version that is current is the last; FULL goes with it.
                session.record(pending)
                progress.count(segment.meta for segment in pending)  # a resume continues from env steps and recording
                _write_full(session, learner, replay, last=True)
                session.publisher.publish(learner.weights(), announce=False)
                return reason
            session.reporter.send_when_due()
        segments, pending = pending[:size], pending[size:]
        batch = session.gathered(segments)
        source.release(hold(replay, segments))
        progress.count_batch(batch)
        session.channel.report(progress.counters.env_steps, progress.counters.updates)
        with session.training() as snapshot:
            session.count_updates(learner.learn(batch, snapshot))
        session.publisher.record_progress()
        reason = session.advance_version()
        session.publisher.publish(learner.weights(), announce=reason is None)
        _write_full(session, learner, replay, last=reason is not None)
        if reason is not None:
            return reason


def run_async_off_policy(session: Session, learner: OffPolicyLearner, replay: SegmentReplay) -> str:
    """Take all there is, update as often as the ratio allows, publish in between."""
    source, progress, counters = session.source, session.progress, session.progress.counters
    section, pace = session.plan.config.replay, Pace()
    due = 0
    while True:
        taken = _take(session, replay, 0.0 if due > 0 else TAKE_S)
        if taken:
            _observe(session, learner, [s for s in taken if not progress.was_counted(s.meta)])
            source.release(hold(replay, taken))
        due, begun = counters.updates_due(section, pace.most), time.monotonic()
        if due > 0 and replay.size:
            with session.training() as snapshot:
                session.count_updates(learner.update(session.drawn(replay), due, snapshot))
            session.publisher.record_progress()
        session.channel.report(counters.env_steps, counters.updates + counters.updates_offset)
        if due <= 0 and session.end.reason_at_boundary(progress) is None:
            session.reporter.send_when_due()
            continue
        reason, updated = session.advance_version(), time.monotonic()
        session.publisher.publish(learner.weights(), announce=reason is None)
        if due > 0:
            pace.observe(due, updated - begun, time.monotonic() - updated)
        _write_full(session, learner, replay, last=reason is not None)
        if reason is not None:
            return reason


def _take(session: Session, replay: SegmentReplay | None, timeout_s: float) -> list[TakenSegment]:
    with session.reporter.waiting():
        taken = session.source.take(timeout_s)
    if replay is not None and not replay.segments:  # all that a predecessor held, in the order of vector envs
        taken.sort(key=lambda segment: (segment.meta.version, segment.meta.id))
    return taken


def _observe(session: Session, learner: OffPolicyLearner, segments: Sequence[TakenSegment]) -> None:
    if segments:
        batch = session.gathered(segments)
        session.progress.count_batch(batch)
        learner.observe(batch)


def _write_full(session: Session, learner: BaseLearner, replay: SegmentReplay | None, last: bool) -> None:
    """Write a due or last FULL, with replay when configured: alongside training, except for the last one."""
    checkpoints = session.checkpoints
    written = replay if session.plan.config.store.async_replay else None
    if last:
        checkpoints.is_writing(wait=True)
        checkpoints.write(learner, written, last=True)
    elif written is not None and not checkpoints.is_writing() and checkpoints.is_due():
        checkpoints.write_in_background(learner, written)
    elif written is None and checkpoints.is_due():
        checkpoints.write(learner)
