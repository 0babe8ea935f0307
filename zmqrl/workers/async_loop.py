"""The async loops: the learner takes what is there; leases and the rate limiter pace both sides."""

from __future__ import annotations

import time

from zmqrl.algorithms.base import OffPolicyLearner, OnPolicyLearner
from zmqrl.memory_backends.base import TakenSegment
from zmqrl.replay.gather import gather
from zmqrl.replay.held import HeldReplay
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
            if learning.stop_requested and len(pending) < size:
                return _stopped(learning)
        batch_segments, pending = pending[:size], pending[size:]
        batch = gather(learning.source.columns, batch_segments)
        learning.source.release([segment.ref for segment in batch_segments])
        learning.note(batch)
        learning.learned(learner.learn(batch, learning.progress))
        reason = learning.boundary()
        learning.publish(announce=reason is None)
        if reason is not None or learning.full_due(every_round=False):
            learning.save_full(durable=True)
        if reason is not None:
            return reason


def run_async_off_policy(learning: Learning, replay: HeldReplay) -> str:
    """Take all there is, update as often as the ratio allows, publish in between."""
    learner, section = learning.learner, learning.config.replay
    assert isinstance(learner, OffPolicyLearner)
    due = 0
    while True:
        taken = learning.take(0.0 if due > 0 else TAKE_S)
        if taken:
            batch = gather(learning.source.columns, taken)
            learning.note(batch)
            learner.observe(batch)
            learning.source.release([segment.ref for segment in replay.add(taken)])
        counters = learning.counters
        due = int(section.ratio * max(0, counters.env_steps - section.learning_starts)) - counters.updates
        if due > 0:
            learning.learned(learner.update(replay, min(due, PUBLISH_EVERY_UPDATES), learning.progress))
        learning.source.report(counters.env_steps, counters.updates)
        if due <= 0 and not learning.stop_requested:
            continue
        reason = learning.boundary()
        learning.publish(announce=reason is None)
        if reason is not None or learning.full_due(every_round=False):
            learning.save_full(durable=True)
        if reason is not None:
            return reason


def _stopped(learning: Learning) -> str:
    """A stop between two batches: the version that is current is the last; FULL goes with it."""
    learning.save_full(durable=True)
    learning.publish(announce=False)
    return "stop"
