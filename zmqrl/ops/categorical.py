"""The categorical distribution over n actions, with its gradients by the logits."""

from __future__ import annotations

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
