"""Targets of Q-learning, and the Huber loss of their errors."""

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


def q_target(n_step_return: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """G + discount * max_a Q'(s', a), `[B]` (Mnih et al. 2015); `next_q [B, A]` from the target network."""
    assert next_q.dim() == 2 and n_step_return.shape == discount.shape == next_q.shape[:1], next_q.shape
    return torch.addcmul(n_step_return, discount, next_q.amax(1))


def double_q_target(n_step_return: Tensor, discount: Tensor, next_q: Tensor, selector_q: Tensor) -> Tensor:
    """G + discount * Q'(s', argmax_a Q(s', a)), `[B]` (van Hasselt et al. 2016, equation 4).

    `next_q` and `selector_q` are `[B, A]`, from the target and from the online network.
    """
    assert next_q.shape == selector_q.shape and n_step_return.shape == discount.shape == next_q.shape[:1]
    best = selector_q.argmax(1, keepdim=True)
    return torch.addcmul(n_step_return, discount, next_q.gather(1, best).squeeze(1))
