"""How much of the returns' variance the value function predicts."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array


def explained_variance(predicted: Array, target: Array) -> float:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 a constant; NaN for constant targets."""
    assert predicted.shape == target.shape, (predicted.shape, target.shape)
    variance = float(np.var(target, dtype=np.float64))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(target - predicted, dtype=np.float64)) / variance
