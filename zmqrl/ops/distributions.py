"""Distributions of actions: categorical over n actions, diagonal Gaussian; with gradients by their parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Categorical:
    """Softmax of `logits [B, A]` float32."""

    def __init__(self, logits: Tensor) -> None:
        self.log_p = torch.log_softmax(logits, 1)
        self.p = self.log_p.exp()

    def log_prob(self, one_hot: Tensor) -> Tensor:
        """Log-probability `[B]` of the actions given as `one_hot [B, A]`."""
        return (self.log_p * one_hot).sum(1)

    def entropy(self) -> Tensor:
        """Entropy `[B]` in nats."""
        return -(self.p * self.log_p).sum(1)

    def logits_grad(self, one_hot: Tensor, by_log_prob: Tensor, by_entropy: float) -> Tensor:
        """The loss's gradient `[B, A]` by the logits, from its gradients by log_prob `[B]` and by each entropy."""
        grad = (one_hot - self.p).mul_(by_log_prob.unsqueeze(1))
        if by_entropy:
            grad -= self.p * (self.log_p + self.entropy().unsqueeze(1)) * by_entropy
        return grad


HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian:
    """Mean `[B, A]` and `log_std [A]`, float32; dimensions are independent."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self._mean, self._log_std = mean, log_std
        self._inverse_std = torch.exp(-log_std)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density `[B]` of `action [B, A]`, unclipped."""
        z = (action - self._mean) * self._inverse_std
        return (-0.5 * z * z - self._log_std - HALF_LOG_TWO_PI).sum(1)

    def entropy(self) -> Tensor:
        """Differential entropy, a scalar: it is the same in every state."""
        return (self._log_std + (0.5 + HALF_LOG_TWO_PI)).sum()

    def grads(self, action: Tensor, by_log_prob: Tensor, by_entropy: float) -> tuple[Tensor, Tensor]:
        """The loss's gradients by the mean `[B, A]` and by log_std `[A]`.

        `by_log_prob [B]` and `by_entropy` (summed over the batch) are its gradients by those two.
        """
        z = (action - self._mean) * self._inverse_std
        weighted = z * by_log_prob.unsqueeze(1)
        return weighted * self._inverse_std, (weighted * z).sum(0) - by_log_prob.sum() + by_entropy
