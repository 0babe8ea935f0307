"""A Gaussian squashed by tanh (Haarnoja et al. 2018, appendix C), for continuous actions within bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zmqrl.loading import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional
else:
    torch = lazy("torch")
    functional = lazy("torch.nn.functional")

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of the log standard deviation (reference code of Haarnoja et al. 2018), as workers act."""


def tanh_gaussian(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in (-1, 1) `[B, A]` and their log-densities `[B]`, differentiable by `outputs`.

    Args:
        outputs: `[B, 2 A]`: mean, then log standard deviation.
        noise: `[B, A]` standard normal numbers.
    """
    mean, log_std = outputs.chunk(2, 1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    before = mean + log_std.exp() * noise
    density = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 - tanh(u)^2), in a form that does not lose its digits where tanh is near 1.
    squash = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (density - squash).sum(1)
