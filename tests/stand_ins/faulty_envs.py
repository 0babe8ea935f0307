"""An env that goes wrong when it is told to."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np


class Faulty(gym.Env[Any, Any]):
    """`fault` after `after` steps of one env: `raise`, `nan`, `shape` or `none`; none in the process `works_in`."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault: str = "none", after: int = 40, works_in: int = 0) -> None:
        fault = "none" if os.getpid() == works_in else fault
        self._fault, self._after, self._steps = fault, after, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self._steps > self._after:
            if self._fault == "raise":
                raise RuntimeError("the wheel came off")
            if self._fault == "nan":
                observation[1] = np.nan
            elif self._fault == "shape":
                observation = observation[:2]
        return observation, 1.0, False, self._steps % 25 == 0, {}
