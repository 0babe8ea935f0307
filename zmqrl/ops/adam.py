"""Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019) on one flat tensor."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from zmqrl.types import Array, Weights


class FlatAdam:
    """Adam in place, in the order of operations of `torch.optim.Adam`; its whole state is two tensors and a count."""

    def __init__(
        self,
        parameters: Tensor,
        *,
        epsilon: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._parameters, self._epsilon, self._weight_decay, self._betas = parameters, epsilon, weight_decay, betas
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        self.steps = 0
        self._scratch = torch.empty_like(parameters)

    def step(self, grad: Tensor, learning_rate: float) -> None:
        """Move the parameters; with weight decay they first shrink by `learning_rate * weight_decay` (AdamW)."""
        self.steps += 1
        first, second = self._betas
        if self._weight_decay:
            self._parameters.mul_(1.0 - learning_rate * self._weight_decay)
        self.mean.lerp_(grad, 1.0 - first)
        self.square.mul_(second).addcmul_(grad, grad, value=1.0 - second)
        torch.sqrt(self.square, out=self._scratch)
        self._scratch.div_(math.sqrt(1.0 - second**self.steps)).add_(self._epsilon)
        self._parameters.addcdiv_(self.mean, self._scratch, value=-learning_rate / (1.0 - first**self.steps))

    def state(self) -> dict[str, Array]:
        """Both moments and the number of steps."""
        moments = {"adam.mean": self.mean, "adam.square": self.square}
        arrays: dict[str, Array] = {name: moment.cpu().numpy().copy() for name, moment in moments.items()}
        return arrays | {"adam.steps": np.array([self.steps], dtype=np.int64)}

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""
        self.mean.copy_(torch.tensor(state["adam.mean"]))
        self.square.copy_(torch.tensor(state["adam.square"]))
        self.steps = int(state["adam.steps"][0])


def clip_by_norm(grad: Tensor, max_norm: float) -> float:
    """Scale `grad` in place so that its Euclidean norm is at most `max_norm`; returns the norm before."""
    norm = float(torch.linalg.vector_norm(grad))
    if norm > max_norm:
        grad.mul_(max_norm / (norm + 1e-6))
    return norm
