"""An env that takes its time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Slow(gym.Env[Any, Any]):
    """Waits `step_s` in every step; an episode has 50. The first step makes the file `begun`, if one is named."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_s: float = 0.001, begun: str | None = None) -> None:
        self._step_s, self._begun, self._steps = step_s, begun, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        if self._begun is not None and not self._steps:
            Path(self._begun).touch()
        time.sleep(self._step_s)
        self._steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, self._steps % 50 == 0, {}


class HostSlow(Slow):
    """As slow as the variable STEP_S of its host has it, and ten times slower once the file SLOWED is there."""

    def __init__(self) -> None:
        super().__init__(float(os.environ.get("STEP_S", "0.001")))
        self._slowed = os.environ.get("SLOWED")

    def step(self, action: Any) -> Any:
        if self._slowed is not None and os.path.exists(self._slowed):
            time.sleep(9 * self._step_s)
        return super().step(action)


class Endless(Slow):
    """Its episodes have no end."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, False, info
