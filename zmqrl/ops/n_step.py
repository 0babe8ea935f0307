"""n-step returns that shorten at episode ends and where the segment ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zmqrl.types import Array


class NStep(NamedTuple):
    """`n_step_return [B]` float32, `length [B]` int64 (rewards summed), `discount [B]` float32."""

    n_step_return: Array
    length: Array
    discount: Array


def n_step_targets(reward: Array, terminated: Array, truncated: Array, present: Array, gamma: float) -> NStep:
    """Sum up to n rewards of each window `[B, n]` (Sutton & Barto 2018, equation 7.1).

    `present` is false where the segment has no such row; the first row of each window must be a valid one. The window
    stops after a terminated or truncated row. The value to bootstrap from is that of the obs `length` rows on
    (after a truncation: the true final obs), times `discount` = gamma^length, or 0 after a termination.
    """
    batch, n = reward.shape
    if not terminated.shape == truncated.shape == present.shape == (batch, n):
        raise ValueError(f"flags must be {(batch, n)}, got {terminated.shape}, {truncated.shape}, {present.shape}")
    goes_on = ~(terminated | truncated)[:, :-1]
    counts = present.copy()
    counts[:, 1:] &= np.logical_and.accumulate(goes_on, axis=1)
    powers = gamma ** np.arange(n + 1, dtype=np.float64)
    total = np.where(counts, reward * powers[:n], 0.0).sum(1)
    length = counts.sum(1)
    ends = (terminated & counts).any(1)
    discount = np.where(ends, 0.0, powers[length])
    return NStep(total.astype(np.float32), length, discount.astype(np.float32))
