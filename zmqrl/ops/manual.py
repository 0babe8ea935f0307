"""The executor `manual`: losses and distributions with their gradients written out, and Adam on a flat gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zmqrl.types import Array, Weights

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class CategoricalGradients:
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


class GaussianGradients:
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


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019) on one flat tensor, in place.

    The order of operations is that of `torch.optim.Adam`; the whole state is two tensors and a count.
    """

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
