"""PPO: generalised advantage estimation, the losses with their gradients written out, and explained variance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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


class Loss(NamedTuple):
    """A loss `[B]` per row, and the gradient `[B]` of its mean."""

    per_row: Tensor
    grad: Tensor


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Loss:
    """-min(r A, clip(r, 1 - c, 1 + c) A) (equation 7); the gradient is by the new log-probability."""
    assert ratio.shape == advantage.shape and ratio.dim() == 1, (ratio.shape, advantage.shape)
    unclipped = ratio * advantage
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    # dr/dlogp = r; where the clipped branch is the smaller one, the loss does not depend on the policy.
    grad = (unclipped * (unclipped <= clipped)).mul_(-1.0 / ratio.shape[0])
    return Loss(torch.minimum(unclipped, clipped).neg_(), grad)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Loss:
    """(V - target)^2 (equation 9); with `clip` the larger of it and that of V kept within old V +- clip."""
    assert value.shape == old_value.shape == target.shape and value.dim() == 1, (value.shape, target.shape)
    error = value - target
    if clip is None:
        return Loss(error * error, error * (2.0 / value.shape[0]))
    change = value - old_value
    clipped_error = old_value + change.clamp(-clip, clip) - target
    plain, clipped = error * error, clipped_error * clipped_error
    counts = (plain >= clipped) | (change.abs() <= clip)
    return Loss(torch.maximum(plain, clipped), error * counts * (2.0 / value.shape[0]))


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old, new) as the mean of (r - 1) - log r (Schulman 2020, "k3")."""
    return (torch.expm1(log_ratio) - log_ratio).mean()
