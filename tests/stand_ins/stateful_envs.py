"""An env whose episodes may last for ever, and that can be put into any state it was in."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Stateful(gym.Env[Any, Any]):
    """A noisy walk towards 0.5; the noise is part of its state."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._noise, self._x = seed or 0, 0.0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._noise = (1103515245 * self._noise + 12345) % (1 << 31)
        self._x = float(np.tanh(self._x + action - 1 + self._noise / (1 << 31) - 0.5))
        return self._obs(), 1.0 - abs(self._x - 0.5), self._noise % 97 == 0, False, {}

    def get_state(self) -> bytes:
        return np.array([self._noise, self._x]).tobytes()

    def set_state(self, state: bytes) -> None:
        noise, self._x = np.frombuffer(state).tolist()
        self._noise = int(noise)

    def _obs(self) -> Any:
        return np.array([self._x, self._noise % 7], np.float32)
