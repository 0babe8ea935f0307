"""Levels: the reward is the level, so a score shows which one was played."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Levels(gym.Env[Any, Any]):
    """Level `first` to `first + count - 1`; `sensors`: numbers of an observation."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, first: int = 0, count: int = 1, sensors: int = 3) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (sensors,), np.float32)
        self._first, self._count = first, count

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._level, self._t = self._first + int(self.np_random.integers(self._count)), 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        obs = np.zeros(self.observation_space.shape, np.float32)
        return obs, float(self._level), self._t >= 2, False, {}


class Doubled(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)
