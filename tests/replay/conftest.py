from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from zmqrl.types import Array

STEPS, ENVS = 6, 2


@pytest.fixture
def make_columns() -> Callable[[int], dict[str, Array]]:
    """Views of `slots` whose obs [T + 1, N, 1] name their own place: 100 slot + 10 t + env."""

    def make(slots: int) -> dict[str, Array]:
        rng = np.random.default_rng(5)
        slot, t, env = np.meshgrid(np.arange(slots), np.arange(STEPS + 1), np.arange(ENVS), indexing="ij")
        terminated = rng.random((slots, STEPS, ENVS)) < 0.15
        truncated = (rng.random(terminated.shape) < 0.15) & ~terminated
        valid = np.ones_like(terminated)
        for step in range(1, STEPS):
            valid[:, step] = ~(terminated | truncated)[:, step - 1]
            terminated[:, step] &= valid[:, step]
            truncated[:, step] &= valid[:, step]
        return {
            "obs": (100 * slot + 10 * t + env)[..., None].astype(np.float32),
            "action": rng.integers(0, 3, terminated.shape),
            "reward": rng.normal(size=terminated.shape).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "valid": valid,
        }

    return make
