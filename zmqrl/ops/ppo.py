"""PPO: the losses with their gradients written out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
