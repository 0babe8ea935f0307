"""Targets of rows of sequences, in torch."""

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
