"""Rewards divided by the deviation of the discounted return (Engstrom et al. 2020, section 3)."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array


def discounted_returns(reward: Array, done: Array, valid: Array, start: Array, gamma: float) -> tuple[Array, Array]:
    """Running discounted returns `[T, N]` float64 of one vector env, and where they stand `[N]` after its last row.

    R_t = gamma R_{t-1} + r_t, from `start [N]`; it starts again after a `done [T, N]`. Invalid rows leave it at 0.
    """
    assert reward.shape == done.shape == valid.shape and start.shape == reward.shape[1:], (reward.shape, start.shape)
    returns = np.empty(reward.shape, dtype=np.float64)
    running = start.astype(np.float64)
    for t in range(len(reward)):
        running = np.where(valid[t], gamma * running + reward[t], 0.0)
        returns[t] = running
        running = np.where(done[t], 0.0, running)
    return returns, running
