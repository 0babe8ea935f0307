"""Content of the witness env's observations, and how rows of it are read back from segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zmqrl.types import Array, SegmentMeta

ACTIONS = 4
DIGESTS = 65_521
"""A prime: digests are below it."""
SEED_HIGH, SEED_LOW, T, DIGEST = range(4)
HALF = 1 << 16

ROW = np.dtype(
    [
        ("vector_env", "<i4"),
        ("env", "<i4"),
        ("incarnation", "<i8"),
        ("index", "<i8"),
        ("seed", "<i4"),
        ("t", "<i4"),
        ("digest", "<i4"),
        ("action", "<i4"),
    ]
)
"""One env step: the first four fields identify its segment, the rest is from the env's observation."""


EPISODE_LIMIT = 100
"""Above every episode's length: it cuts none, and bounds what a handover carries."""


def episode_steps(seed: int) -> int:
    """Length of the episode that was reset with `seed`: 20 to 80."""
    return 20 + seed % 61


def ends_truncated(seed: int) -> bool:
    """Every other episode is cut, the rest terminate."""
    return seed % 2 == 0


def next_digest(digest: Any, action: Any) -> Any:
    """Of all actions of the episode, numbers or arrays: a successor that repeats others shows in every row after."""
    return (31 * digest + action + 1) % DIGESTS


def rows_of(columns: Mapping[str, Array], metas: Sequence[SegmentMeta]) -> Array:
    """The valid rows `[rows]` of segments side by side: `obs [T + 1, E, 4]`, `action` and `valid [T, E]`."""
    valid = columns["valid"]
    envs = valid.shape[1] // len(metas)
    column, t = np.nonzero(valid.T)  # ordered by env, then by time
    rows = np.zeros(len(t), ROW)
    segment = column // envs
    ids = np.array([meta.id for meta in metas], np.int64)
    rows["vector_env"], rows["incarnation"], rows["index"] = ids[segment].T
    rows["env"] = column % envs
    obs = columns["obs"][:-1][t, column].astype(np.int64)
    rows["seed"] = obs[:, SEED_HIGH] * HALF + obs[:, SEED_LOW]
    rows["t"], rows["digest"] = obs[:, T], obs[:, DIGEST]
    rows["action"] = columns["action"][t, column]
    return rows
