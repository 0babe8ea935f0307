"""From slots to one batch: the only place where segments are copied on the learner's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import Array, SlotRef


def gather(columns: Mapping[str, Array], refs: Sequence[SlotRef], metas: Sequence[SegmentMeta]) -> SegmentBatch:
    """Copy held slots out of the arena's views `[slots, T, N, ...]` into C-contiguous `[T, E, ...]`.

    E = segments * N. The segments are put into the order of vector envs (then incarnation, index), whatever the order
    of `refs`, so that a batch does not depend on which worker was faster.
    """
    if len(refs) != len(metas) or not refs:
        raise ValueError(f"need as many metas as refs and at least one, got {len(metas)} and {len(refs)}")
    order = sorted(range(len(refs)), key=lambda i: metas[i].id)
    slots = [refs[i].slot for i in order]
    return SegmentBatch({k: _side_by_side(v, slots) for k, v in columns.items()}, tuple(metas[i] for i in order))


def _side_by_side(column: Array, slots: Sequence[int]) -> Array:
    _, steps, envs, *rest = column.shape
    out = np.empty((steps, len(slots) * envs, *rest), dtype=column.dtype)
    for place, slot in enumerate(slots):
        out[:, place * envs : (place + 1) * envs] = column[slot]
    return out
