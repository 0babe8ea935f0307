"""One's own gymnasium env.

From this directory: `zmqrl train cartpole-ppo --set env.id=own_env:Corridor --set env.max_episode_steps=50`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Obs = NDArray[np.float32]


class Corridor(gym.Env[Obs, np.int64]):
    """Walk to the right end of a corridor: 1 there, -0.1 for every step on the way, 50 steps at most."""

    def __init__(self, length: int = 10) -> None:
        """`length` is set by `--set env.kwargs.length=20`."""
        self.length = length
        self.observation_space = gym.spaces.Box(0, length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(self.length)), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = max(0, self.place + (1 if action else -1)), self.steps + 1
        arrived = self.place >= self.length
        return np.array([self.place], np.float32), 1.0 if arrived else -0.1, arrived, self.steps >= 50, {}
