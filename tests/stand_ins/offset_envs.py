"""An env whose discrete actions do not count from 0."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Offset(gym.Env[Any, Any]):
    """Three actions from `start`; each shows in every later observation. Episodes of 80 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, start: int = -1) -> None:
        self.action_space = gym.spaces.Discrete(3, start=start)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = float(self.np_random.uniform(-1, 1)), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        self._x, self._t = float(np.sin(3.0 * self._x + float(action - self.action_space.start))), self._t + 1
        return self._obs(), self._x, False, self._t >= 80, {}

    def _obs(self) -> Any:
        return np.array([self._x, self._t / 80], np.float32)
