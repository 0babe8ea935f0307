"""Batches of two replays: rows of the run, and a share of loaded rows, as in DQfD (Hester et al. 2018, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from zmqrl.replay.base import AnySample, Replay, ReplaySample, SegmentBatch, SequenceSample
from zmqrl.types import Array

Sample = TypeVar("Sample", ReplaySample, SequenceSample)
TIME_FIRST = frozenset(("obs", "action", "reward", "terminated", "truncated", "valid", "reset", "mask", "extras"))
"""Fields of `SequenceSample` whose second axis is that of the batch."""


class MixedReplay(Replay):
    """Draws round(share * B) rows or sequences of each batch from `loaded`, behind those of `own`.

    `rows` of loaded items are negative: -1 - their name in `loaded`. Only rows of `own` count in `size`.
    """

    def __init__(self, own: Replay, loaded: Replay, share: float) -> None:
        self._own, self._loaded, self._share = own, loaded, share

    @property
    def size(self) -> int:
        """Rows, or sequences, of the run that may be drawn: loaded ones alone begin no training."""
        return self._own.size

    @property
    def segments(self) -> int:
        """Segments of the run."""
        return self._own.segments

    def batches(self, segments: int) -> Iterator[SegmentBatch]:
        return self._own.batches(segments)

    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        own, loaded = self._parts(batch_size)
        parts = [self._own.sample(own, n_step, gamma, key)] if own else []
        return _joined(parts, [self._loaded.sample(loaded, n_step, gamma, key)] if loaded else [])

    def sample_sequences(self, count: int, key: int) -> SequenceSample:
        own, loaded = self._parts(count)
        parts = [self._own.sample_sequences(own, key)] if own else []
        return _joined(parts, [self._loaded.sample_sequences(loaded, key)] if loaded else [])

    def set_priorities(self, sample: AnySample, priorities: Array) -> None:
        is_own = sample.rows >= 0
        for replay, chosen in ((self._own, is_own), (self._loaded, ~is_own)):
            if chosen.any():
                rows = sample.rows[chosen] if replay is self._own else -1 - sample.rows[chosen]
                part = replace(sample, rows=rows, generations=sample.generations[chosen])
                replay.set_priorities(part, priorities[chosen])

    def anneal(self, beta: float) -> None:
        self._own.anneal(beta)
        self._loaded.anneal(beta)

    def _parts(self, count: int) -> tuple[int, int]:
        loaded = round(self._share * count)
        return count - loaded, loaded


def _joined(own: list[Sample], loaded: list[Sample]) -> Sample:
    parts = own + [replace(sample, rows=-1 - sample.rows) for sample in loaded]
    if len(parts) == 1:
        return parts[0]
    is_sequences = isinstance(parts[0], SequenceSample)
    joined = {}
    for field in fields(parts[0]):
        values, axis = [getattr(part, field.name) for part in parts], int(is_sequences and field.name in TIME_FIRST)
        if isinstance(values[0], np.ndarray):
            joined[field.name] = np.concatenate(values, axis)
        else:
            joined[field.name] = {name: np.concatenate([value[name] for value in values], axis) for name in values[0]}
    return type(parts[0])(**joined)
