"""Log-probabilities and entropies of actions under a policy's outputs, in differentiable torch."""

from __future__ import annotations

import math
from typing import Any

from zmqrl.loading import Tensor, functional, torch

FORBIDDEN = -1e8
"""Logit of an action that the mask forbids: its probability is 0, and no gradient is NaN."""
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of the log standard deviation (reference code of Haarnoja et al. 2018), as workers act."""
LARGEST_SQUASHED = 1.0 - 2.0**-24
"""The float32 before 1."""


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """`logits [B, A]`, with the actions forbidden where `mask [B, A]` is 0."""
    return logits if mask is None else torch.where(mask.bool(), logits, FORBIDDEN)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy `[B]` of `action [B]` int64 under softmax of `logits [B, A]`."""
    log_p = torch.log_softmax(logits, 1)
    log_prob = log_p.gather(1, action.unsqueeze(1)).squeeze(1)
    return log_prob, -(log_p.exp() * log_p).sum(1)


def multi_categorical(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Sums over the parts of a multi-discrete action: `logits [B, sum of sizes]`, `action [B, parts]` int64."""
    parts = [categorical(part, action[:, i]) for i, part in enumerate(torch.split(logits, list(sizes), 1))]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density and entropy `[B]` of `action [B, A]`; `mean [B, A]`, `log_std [A]` or `[B, A]`."""
    z = (action - mean) * torch.exp(-log_std)
    log_prob = (-0.5 * z * z - log_std - 0.5 * math.log(2.0 * math.pi)).sum(1)
    entropy = (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)
    return log_prob, entropy.expand_as(log_prob)


def gaussian_divergences(mean: Tensor, log_std: Tensor, old_mean: Tensor, old_log_std: Tensor) -> tuple[Tensor, Tensor]:
    """KL divergences `[B]` of a Gaussian from an old one, KL(old || new): of its mean alone, of its deviation alone.

    In each the other part is that of the old one (Abdolmaleki et al. 2018, arXiv 1812.02256).

    Args:
        mean: `[B, A]`; likewise `old_mean`.
        log_std: Log standard deviations `[B, A]` or `[A]`; likewise `old_log_std`.
        old_mean: Of the policy from which the divergence is measured.
        old_log_std: Of the same.
    """
    of_mean = 0.5 * ((mean - old_mean) * torch.exp(-old_log_std)).square()
    change = log_std - old_log_std
    return of_mean.sum(1), (change + 0.5 * torch.expm1(-2.0 * change)).sum(1)


def mean_and_log_std(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Halves `[B, A]` of `outputs [B, 2 A]`, the second one bounded: what the heads with normal actions draw from."""
    mean, log_std = outputs.chunk(2, 1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def tanh_gaussian(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in (-1, 1) `[B, A]` and their log-densities `[B]`, differentiable by `outputs`.

    Args:
        outputs: `[B, 2 A]`: mean, then log standard deviation.
        noise: `[B, A]` standard normal numbers.
    """
    mean, log_std = mean_and_log_std(outputs)
    before = mean + log_std.exp() * noise
    density = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    return torch.tanh(before), (density - _squash(before)).sum(1)


def tanh_gaussian_log_prob(outputs: Tensor, action: Tensor) -> Tensor:
    """Log-density `[B]` of actions in [-1, 1] `[B, A]`, such as stored ones, for `outputs` of `tanh_gaussian`.

    The inverse of tanh has fewer digits near 1: its error is about 3e-5 for |action| = 0.999, and 3e-4 for 0.9999.
    1 is taken for `LARGEST_SQUASHED`.
    """
    mean, log_std = mean_and_log_std(outputs)
    before = torch.atanh(action.clamp(-LARGEST_SQUASHED, LARGEST_SQUASHED))
    return gaussian(mean, log_std, before)[0] - _squash(before).sum(1)


def _squash(before: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), in a form that does not lose its digits where tanh is near 1."""
    return 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))


def clipped_gain(ratio: Tensor, advantage: Tensor, clip: Tensor | float) -> Tensor:
    """What PPO maximises the mean of, `[B]` (Schulman et al. 2017, equation 7): min(r A, clip(r) A).

    Args:
        ratio: Probability ratios r `[B]` to the policy that acted.
        advantage: A `[B]`.
        clip: Distance from 1 that r counts within, a number or a tensor `[]`.
    """
    low: Any = 1.0 - clip
    high: Any = 1.0 + clip  # torch types two numbers or two tensors alone
    return torch.minimum(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
