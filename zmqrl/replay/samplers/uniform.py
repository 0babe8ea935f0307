"""Every item with the same probability."""

from __future__ import annotations

import numpy as np

from zmqrl.replay.samplers.base import Sampler
from zmqrl.types import Array


class UniformSampler(Sampler):
    """Draws with replacement."""

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Weights are 1."""
        return self.held.nth(generator.integers(0, self.held.size, count)), np.ones(count, dtype=np.float32)
