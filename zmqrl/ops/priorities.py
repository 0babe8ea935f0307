"""Priorities of sequences."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array


def sequence_priorities(delta: Array, mask: Array, max_share: float = 0.9) -> Array:
    """One priority per sequence: share * max |delta| + (1 - share) * mean |delta| over the rows in `mask`.

    Kapturowski et al. 2019 (R2D2), section 2.3, with their eta as `max_share`. `delta [R, C]`, `mask [R, C]` bool; the
    result `[C]` is float64, and 0 where no row counts.
    """
    if delta.shape != mask.shape:
        raise ValueError(f"delta and mask must have one shape, got {delta.shape} and {mask.shape}")
    size = np.where(mask, np.abs(delta.astype(np.float64)), 0.0)
    mean = size.sum(0) / np.maximum(mask.sum(0), 1)
    mixed: Array = max_share * size.max(0) + (1.0 - max_share) * mean
    return mixed
