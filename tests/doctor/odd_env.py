"""An env that misbehaves where the environment variable ODD_ENV says how: the same id is sound on other hosts."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_born = 0
HOW = os.environ.get("ODD_ENV", "")
if HOW == "import":
    raise RuntimeError("the simulator's licence has run out")


class Env(gym.Env[Any, Any]):
    """`drift`: an env made later moves otherwise; `crash`, `hang`, `nan`: at the fifth step."""

    def __init__(self) -> None:
        global _born
        _born += 1
        self._drift = _born if HOW == "drift" else 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 if HOW == "wider" else 3,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t, self._at = 0, float(self.np_random.random())
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._at += float(action) * 0.1 + self._drift * 1e-3
        if self._t == 5:
            self._misbehave()
        return self._obs(), 1.0, self._t >= 20, False, {}

    def _misbehave(self) -> None:
        if HOW == "crash":
            os.abort()
        if HOW == "hang":
            print("now it hangs", flush=True)
            time.sleep(600)
        if HOW == "nan":
            self._at = float("nan")

    def _obs(self) -> Any:
        return np.array([self._at, self._t, 0.0, *([0.0] if HOW == "wider" else [])], np.float32)
