"""Losses on a TD error with their derivatives."""

from __future__ import annotations

import torch
from torch import Tensor


def huber(error: Tensor) -> tuple[Tensor, Tensor]:
    """1/2 e^2 within [-1, 1] and |e| - 1/2 outside (Huber 1964), and its derivative; both of `error`'s shape."""
    slope = error.clamp(-1.0, 1.0)
    return slope * (error - 0.5 * slope), slope


def half_square(error: Tensor) -> tuple[Tensor, Tensor]:
    """1/2 e^2 and its derivative e."""
    return 0.5 * error * error, torch.clone(error)
