"""Targets of values, also on another scale, and targets and losses of distributions of returns, in torch."""

from __future__ import annotations

from zmqrl.loading import Tensor, torch


def n_step_targets(
    reward: Tensor, terminated: Tensor, truncated: Tensor, value: Tensor, gamma: float, n: int
) -> Tensor:
    """Discounted sums of n rewards and the value after them, `[T, B]` (Sutton & Barto 2018, equation 7.1).

    Those of a row end earlier with its episode or with the sequence. A termination has no value after it.

    Args:
        reward: `[T, B]`.
        terminated: `[T, B]` bool; likewise `truncated`.
        truncated: The value after a truncated row is that of the true last observation of the episode.
        value: `[T, B]`: the value of the observation after each row.
        gamma: Discount per step.
        n: At most so many rewards; at least 1.

    Raises:
        ValueError: The tensors have different shapes, or n is below 1.
    """
    shapes = [tuple(tensor.shape) for tensor in (reward, terminated, truncated, value)]
    if any(shape != shapes[0] for shape in shapes) or n < 1:  # sizes of a recording cannot be hashed
        raise ValueError(f"reward, terminated, truncated and value must have one shape, got {shapes}; n is {n}")
    following, ended = value, terminated | truncated
    for _ in range(n):
        target = reward + gamma * torch.where(terminated, 0.0, following)
        following = torch.where(ended, value, torch.cat((target[1:], value[-1:])))
    return target


def project(p: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Probabilities `[B, atoms]` of `reward [B] + discount [B] * support`, which has those of `p [B, atoms]`.

    Each moved atom gives its probability to its two neighbours in `support`, in proportion to their nearness (equation
    7 of Bellemare et al. 2017).
    """
    low, high, distance = support[0], support[-1], support[1] - support[0]
    moved = (reward.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(low, high)
    apart = (moved.unsqueeze(1) - support.unsqueeze(1)).abs_().div_(distance)
    return ((1.0 - apart).clamp_(min=0.0) @ p.unsqueeze(2)).squeeze(2)


def quantile_huber(quantiles: Tensor, target: Tensor, level: Tensor | None = None) -> Tensor:
    """The loss `[B]`: mean over `target [B, M]`, sum over `quantiles [B, N]`.

    Their levels are `level [B, N]`; None: (i + 1/2) / N.
    """
    if level is None:
        count = quantiles.shape[1]
        level = ((torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count).view(1, -1)
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)
    slope = error.clamp(-1.0, 1.0)
    huber = slope * (error - 0.5 * slope)
    weight = (level.unsqueeze(2) - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * huber).mean(2).sum(1)


def rescaled(x: Tensor, epsilon: float) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, arXiv 1805.11593, section 3.2)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + epsilon * x


def unscaled(x: Tensor, epsilon: float) -> Tensor:
    """The inverse of `rescaled` (proposition A.2 (iii)), without the difference of two near numbers of the paper."""
    size = x.abs() + 1.0 + epsilon
    root = 2.0 * size / ((1.0 + 4.0 * epsilon * size).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)
