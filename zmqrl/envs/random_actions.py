"""Actions without a policy."""

from __future__ import annotations

import numpy as np

from zmqrl.types import Array, EnvSpec


def random_actions(spec: EnvSpec, count: int, generator: np.random.Generator) -> Array:
    """Drawn uniformly, or from a standard normal distribution where the space has no bounds.

    Args:
        spec: Of the env.
        count: How many.
        generator: The source of randomness.

    Returns:
        Discrete: int64 `[count]`; else the dtype of the space, `[count, *shape]`.
    """
    action = spec.action
    if action.kind == "discrete":
        return generator.integers(0, action.n, count)
    if not action.low:
        return generator.normal(size=(count, *action.shape)).astype(action.dtype)
    low, high = (np.reshape(side, action.shape) for side in (action.low, action.high))
    return generator.uniform(low, high, (count, *action.shape)).astype(action.dtype)
