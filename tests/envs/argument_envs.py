"""Envs and wrappers whose arguments plain data cannot hold, or that need a number of their own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

BASE_PORT = 27_310
"""Below the ports that the kernel gives to outgoing connections."""


class Camera(gym.Env[Any, Any]):
    """Images of `shape`, which must be a tuple."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape: Any = (8, 8), dtype: Any = np.uint8) -> None:
        if not isinstance(shape, tuple):
            raise AssertionError
        self.observation_space = gym.spaces.Box(0, 255, shape, dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        obs = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        return obs, 3.0, self._t >= 5, False, {}


class Sized(gym.Wrapper[Any, Any, Any, Any]):
    """Accepts a list too, and then behaves in another way."""

    def __init__(self, env: gym.Env[Any, Any], size: tuple[int, int], scale: Callable[[float], float]) -> None:
        super().__init__(env)
        self.size, self.scale = size, scale


def tenth(reward: Any) -> float:
    return 0.1 * float(reward)


class Port(Camera):
    """As a simulator: each copy needs a port of its own."""

    def __init__(self, number: int = 0, name: str = "") -> None:
        super().__init__()
        self.name, self.variable = name, os.environ["ZMQRL_ENV_INDEX"]
        self._server = socket.socket()
        try:
            self._server.bind(("127.0.0.1", BASE_PORT + number))
        except OSError as error:
            self._server.close()
            raise RuntimeError(f"worker number {number} is still in use") from error

    def close(self) -> None:
        self._server.close()
