"""Planted defects, which the drill has to find: memory backends of the witness run that spoil segments.

Each is the `zmq` backend whose source, the learner's end, writes into every `EVERY`-th segment before it is read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.config.plan import Boot
from zmqrl.memory_backends._learner_channel import ZmqChannel
from zmqrl.memory_backends.base import SegmentSource, TakenSegment
from zmqrl.memory_backends.zmq import ZmqBackend, ZmqSource
from zmqrl.types import Array

EVERY = 10
"""Often enough that one is left of the rounds that no learner rolls back from."""
Columns = Mapping[str, Array]


class _SpoilingSource(ZmqSource):
    def __init__(self, boot: Boot, channel: ZmqChannel, backend: type[_Spoiling]) -> None:
        super().__init__(boot, channel)
        self._backend = backend
        self._taken = 0
        self._before: dict[int, Columns] = {}

    def take(self, timeout_s: float) -> list[TakenSegment]:
        taken = super().take(timeout_s)
        for segment in taken:
            self._taken += 1
            columns = {name: column[segment.ref.slot] for name, column in self.columns.items()}
            vector_env = segment.meta.id.vector_env
            if self._taken % EVERY == 0 and vector_env in self._before:
                self._backend.spoil(columns, self._before[vector_env])
            self._before[vector_env] = {name: np.array(column) for name, column in columns.items()}
        return taken


class _Spoiling(ZmqBackend):
    def _source(self, boot: Boot, channel: ZmqChannel) -> SegmentSource:
        return _SpoilingSource(boot, channel, type(self))

    @classmethod
    def spoil(cls, columns: Columns, before: Columns) -> None:
        """Write into a segment; `before`: a copy of the one before it of its vector env."""
        raise NotImplementedError


class Lose(_Spoiling):
    """The learner is never given the rows of a segment that was accepted."""

    @classmethod
    def spoil(cls, columns: Columns, before: Columns) -> None:
        del before
        columns["valid"][:] = False


class Double(_Spoiling):
    """The learner is given a segment twice, the second time in the place of another."""

    @classmethod
    def spoil(cls, columns: Columns, before: Columns) -> None:
        for name, column in columns.items():
            column[:] = before[name]


class Tear(_Spoiling):
    """The last half of a segment is overwritten while it is read: it has the rows of an older one."""

    @classmethod
    def spoil(cls, columns: Columns, before: Columns) -> None:
        for name, column in columns.items():
            half = len(column) // 2
            column[half:] = before[name][half:]


DEFECTS: Mapping[str, type[_Spoiling]] = {"lose": Lose, "double": Double, "tear": Tear}
