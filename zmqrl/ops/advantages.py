"""Generalised advantage estimation, and explained variance."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array


def generalised_advantages(
    reward: Array, value: Array, terminated: Array, truncated: Array, valid: Array, gamma: float, lambda_: float
) -> Array:
    """Advantages `[T, E]` (Schulman et al. 2016, equation 16), 0 on invalid rows.

    `reward`, `terminated`, `truncated`, `valid` are `[T, E]`; `value [T + 1, E]` is V of each row's obs. The row
    after a done holds the true final obs, so V(final obs) is simply the next row: truncation bootstraps from it,
    termination does not, and the sum over later steps stops at either.
    """
    steps, envs = reward.shape
    if value.shape != (steps + 1, envs) or not terminated.shape == truncated.shape == valid.shape == reward.shape:
        raise ValueError(f"value {value.shape} must be [T + 1, E] for reward {reward.shape}, flags [T, E]")
    bootstrap = gamma * (valid & ~terminated)
    # float64 and back: the recursion is short, and sums of float32 would depend on T.
    delta = np.where(valid, reward + bootstrap * value[1:].astype(np.float64) - value[:-1], 0.0)
    decay = (gamma * lambda_) * (valid & ~(terminated | truncated))
    advantage, running = np.empty_like(delta), np.zeros(envs)
    for t in range(steps - 1, -1, -1):
        running = delta[t] + decay[t] * running
        advantage[t] = running
    return advantage.astype(np.float32)


def explained_variance(predicted: Array, target: Array) -> float:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 a constant; NaN for constant targets."""
    assert predicted.shape == target.shape, (predicted.shape, target.shape)
    variance = float(np.var(target, dtype=np.float64))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(target - predicted, dtype=np.float64)) / variance
