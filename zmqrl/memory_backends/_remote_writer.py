"""Segments of a worker on another host: in its own memory until they are accepted, sent whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends._arena_ends import SegmentWriter
from zmqrl.messages.bus import OpenRows, Segment, SegmentWords
from zmqrl.messages.frames import pack
from zmqrl.shared_memory.arena import layout_of
from zmqrl.types import Array, SegmentMeta, SlotRef

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RemoteWriter(SegmentWriter):
    """A lease is a credit for one segment; the broker writes it into the slot."""

    keeps_segments = True

    def __init__(self, plan: RunPlan) -> None:
        self._specs = plan.columns
        self._layout = layout_of(plan).digest
        self._columns: dict[SlotRef, Mapping[str, Array]] = {}
        self._metas: dict[SlotRef, SegmentMeta] = {}
        self._open: dict[int, tuple[int, int]] = {}

    def columns(self, ref: SlotRef) -> Mapping[str, Array]:
        # zeros: a buffer may not be reused while a frame of it is still on its way
        self._columns[ref] = {c.name: np.zeros(c.shape, c.dtype) for c in self._specs}
        return self._columns[ref]

    def open_rows(self, vector_env: int, index: int, rows: int) -> None:
        self._open[vector_env] = (index, rows)

    def open_now(self) -> list[OpenRows]:
        """Of each segment that is stepped and not accepted: lost if the host is."""
        sealed = [OpenRows(meta.id.vector_env, meta.id.index, meta.rows) for meta in self._metas.values()]
        return sealed + [OpenRows(vector_env, index, rows) for vector_env, (index, rows) in self._open.items() if rows]

    def seal(self, ref: SlotRef, meta: SegmentMeta) -> None:
        self._metas[ref] = meta
        self._open[meta.id.vector_env] = (meta.id.index + 1, 0)

    def take_up(self, vector_env: int) -> None:
        self._open.pop(vector_env, None)

    def move(self, ref: SlotRef, to: SlotRef) -> None:
        self._columns[to], self._metas[to] = self._columns.pop(ref), self._metas.pop(ref)

    def forget(self, ref: SlotRef) -> None:
        self._columns.pop(ref, None)
        self._metas.pop(ref, None)

    def frames(self, index: int, spawn: int, ref: SlotRef) -> list[Buffer]:
        """The message of a sealed segment: its header and its columns."""
        header = pack(Segment(self._layout, index, spawn, ref, SegmentWords.of(self._metas[ref])))
        columns: list[Any] = [self._columns[ref][c.name] for c in self._specs]
        return [header, *columns]
