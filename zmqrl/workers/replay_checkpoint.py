"""Replay in FULL: the held segments, oldest first, and what the sampler knows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zmqrl.data_stores.tensors import Rows
from zmqrl.memory_backends.base import SegmentSource, TakenSegment
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import Array, SegmentId, SegmentMeta, Version, Weights
from zmqrl.workers.counters import prefixed, unprefixed


def replay_arrays(replay: UniformReplay) -> dict[str, Array]:
    """The part of FULL that is small: sampler state and metas `[k, 6]`."""
    return {**prefixed("sampler", replay.state()), "held_metas": metas_array([meta for _, meta in replay.held()])}


def replay_rows(replay: UniformReplay, columns: Mapping[str, Array]) -> dict[str, Rows]:
    """The held rows of each column, `[k, T, N, ...]`, to be written from the slots themselves."""
    slots = [ref.slot for ref, _ in replay.held()]
    return {f"held/{name}": Rows(column, slots) for name, column in columns.items()}


def metas_array(metas: Sequence[SegmentMeta]) -> Array:
    """`[k, 6]`, as FULL holds them."""
    return np.array([(*meta.id, *meta.version, meta.rows) for meta in metas], np.int64).reshape(-1, 6)


def restore_segments(arrays: Weights, source: SegmentSource) -> list[TakenSegment]:
    """Put the segments of FULL back into slots; none when FULL has no replay."""
    metas, columns = held_segments(arrays)
    return source.restore(metas, columns) if metas else []


def held_segments(arrays: Weights) -> tuple[list[SegmentMeta], dict[str, Array]]:
    """What replay held, oldest first; nothing when FULL has no replay."""
    if "held_metas" not in arrays:
        return [], {}
    rows = arrays["held_metas"].tolist()
    metas = [SegmentMeta(SegmentId(*row[:3]), Version(*row[3:5]), row[5]) for row in rows]
    return metas, unprefixed("held", arrays)


def refill(replay: UniformReplay, arrays: Weights, held: Sequence[TakenSegment]) -> None:
    """Have an empty replay hold what it held, with the same priorities."""
    replay.load_state(unprefixed("sampler", arrays))
    for ref, meta in held:
        replay.add(ref, meta)
