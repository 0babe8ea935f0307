"""The loop of sync, single and pipelined: a round is one segment per vector env, acted with one version.

It is the current version; in pipelined the one before, because workers act a round while the learner trains the round
before. Segments that arrive early are kept until their round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from zmqrl.algorithms.base import OffPolicyLearner, OnPolicyLearner
from zmqrl.broker.events import Handover
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.learner.session import Session, hold
from zmqrl.replay.base import SegmentBatch, last_observation
from zmqrl.replay.limiter import NO_LIMIT
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.types import SlotRef

TAKE_S = 0.2
VERIFY_AFTER_S = 3.0
"""After so long without a segment the learner checks whether what it published can still be read."""
Learner: TypeAlias = OnPolicyLearner | OffPolicyLearner
Collect: TypeAlias = Callable[[Callable[[], bool]], None]
"""Steps the envs of this process: collects what the current version lacks, until the argument, a function that is
called between two env steps, returns true."""


def run_sync(session: Session, learner: Learner, replay: SegmentReplay | None, collect: Collect | None) -> str:
    """Train round by round until a reason to end; the last version is saved and not announced.

    `collect` is given in single mode; else workers collect in processes of their own.
    """
    checkpoints = session.checkpoints
    most_nbytes, full_nbytes = session.plan.config.store.sync_full_max_mb * 1e6, 0
    early: list[TakenSegment] = []
    while True:
        taken, early, overdue = _take_round(session, learner, early, collect)
        if overdue is not None:
            # FULL of the last boundary: of the round that did not come together only the env records know.
            checkpoints.write(learner, replay, last=True, without=taken.keys())
            return overdue
        segments = [taken[vector_env] for vector_env in sorted(taken)]
        batch = session.gathered(segments)
        session.progress.count_batch(batch)
        released = _learn(session, learner, replay, batch, segments)
        reason = session.advance_version()
        # Every round while it is small; with replay, or where it is large, by the clock.
        is_small = replay is None and full_nbytes <= most_nbytes
        if reason is not None or is_small or checkpoints.is_due():
            full_nbytes = checkpoints.write(learner, replay, last=reason is not None) or full_nbytes
        session.publisher.record_progress()  # first: a successor must know that slots which FULL names may be gone
        session.source.release(released)
        session.publisher.publish(learner.weights(), announce=reason is None)
        if reason is not None:
            return reason


def _take_round(
    session: Session, learner: Learner, arrived: Sequence[TakenSegment], collect: Collect | None
) -> tuple[dict[int, TakenSegment], list[TakenSegment], str | None]:
    """One segment per vector env, and those of the next round; or fewer, and the reason to end the run without them.

    `arrived`: what came before the round began.
    """
    quota, end = session.plan.config.env.vector_envs, session.end
    taken: dict[int, TakenSegment] = {}
    early = _sort(session, arrived, taken)
    verify_at = time.monotonic() + VERIFY_AFTER_S
    while True:
        with session.reporter.waiting():
            if collect is not None:
                collect(end.is_overdue)
            arrived = session.source.take(TAKE_S if len(taken) < quota else 0.0)
        if arrived:
            verify_at = time.monotonic() + VERIFY_AFTER_S
        elif time.monotonic() >= verify_at:
            verify_at = time.monotonic() + VERIFY_AFTER_S
            session.publisher.repair(learner.weights)
        early += _sort(session, arrived, taken)
        _answer_handover_requests(session)
        if len(taken) == quota:
            return taken, early, None
        overdue = end.overdue
        if overdue is not None:
            return taken, early, overdue


def _sort(session: Session, arrived: Sequence[TakenSegment], taken: dict[int, TakenSegment]) -> list[TakenSegment]:
    """Add those of this round to `taken`, and return those of the next one; the others are released."""
    early = []
    for segment in arrived:
        if session.progress.is_current(segment.meta):
            taken[segment.meta.id.vector_env] = segment
            _advance_episodes(session, segment)
        elif session.progress.is_early(segment.meta):
            early.append(segment)
        else:
            session.source.release([segment.ref])
    return early


def _learn(
    session: Session,
    learner: Learner,
    replay: SegmentReplay | None,
    batch: SegmentBatch,
    segments: Sequence[TakenSegment],
) -> list[SlotRef]:
    """One round of learning; returns the slots that are no longer needed."""
    unneeded = hold(replay, segments)
    if isinstance(learner, OnPolicyLearner):
        with session.training() as progress:
            session.count_updates(learner.learn(batch, progress))
        return unneeded
    assert replay is not None
    learner.observe(batch)
    due = session.progress.counters.updates_due(session.plan.config.replay, NO_LIMIT)
    if due > 0 and replay.size:
        with session.training() as progress:
            session.count_updates(learner.update(session.drawn(replay), due, progress))
    return unneeded


def _advance_episodes(session: Session, segment: TakenSegment) -> None:
    """Move the env-slot record of the segment's vector env to its end."""
    episodes, slot = session.progress.episodes, segment.ref.slot
    columns = session.source.columns
    read = {name: columns[name][slot] for name in episodes.record_columns}
    if "obs" in read:
        read["obs"] = last_observation(columns, slot)[None]
    numbers = None
    if session.plan.env.receives_numbers:
        acted_with = session.publisher.published(segment.meta.version.n)
        numbers = None if acted_with is None else acted_with.notice.schedule
    episodes.advance(segment.meta, read, numbers)


def _answer_handover_requests(session: Session) -> None:
    """Send successors of dead workers their start state, once the record has reached what the broker has accepted."""
    for request in session.channel.handover_requests():
        index, states = session.progress.episodes.record(request.vector_env)
        if index >= request.next_index:
            session.channel.answer(Handover(request.vector_env, request.incarnation, index, states))
