"""Random observations of any space, for the suites."""

from __future__ import annotations

import numpy as np

from zmqrl.spaces import ACTION_MASK, SpaceSpec, view
from zmqrl.types import Array


def observations(space: SpaceSpec, rng: np.random.Generator, lead: tuple[int, ...]) -> Array:
    """Observations `[*lead, *space.shape]` as an env returns them, packed; a mask allows at least one action."""
    found: Array = np.zeros((*lead, *space.shape), space.dtype)
    for part in space.leaves():
        rows, inner = view(found, space, part), part.space
        if inner.choices:
            rows[...] = rng.integers(0, inner.nvec or inner.n, rows.shape)
        elif part.name == ACTION_MASK:
            rows[...] = rng.random(rows.shape) < 0.5
            rows[..., rng.integers(rows.shape[-1])] = 1
        elif np.dtype(inner.dtype).kind == "f":
            rows[...] = rng.normal(size=rows.shape)
        else:
            low, high = (inner.low or (0.0,))[0], (inner.high or (1.0,))[0]
            rows[...] = rng.integers(int(low), int(high) + 1, rows.shape)
    return found
