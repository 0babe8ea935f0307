"""Envs whose episodes depend on the numbers that `on_progress` receives, on their order and on their time."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs.agent_envs import Walkers


class Windy(gym.Env[Any, Any]):
    """Deterministic by the seed, the actions, the wind at the reset, and each later wind with the step before it.

    The wind is the sum of all numbers.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self._wind, self._changes = 0.0, 0
        self._x, self._t = np.zeros(2), 0

    def on_progress(self, numbers: dict[str, float]) -> None:
        self._wind = sum(numbers.values())
        self._changes += 1
        numbers.clear()  # the dict is its own

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t, self._changes = (self.np_random.random(2) + self._wind) % 1.0, 0, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._x = (self._x * 3.7 * (1.0 - self._x) + 0.01 * action + 0.1 * self._wind + 0.001 * self._changes) % 1.0
        return self._obs(), float(self._x[0]), bool(self._x[1] < 0.04), self._t >= 30, {}

    def get_state(self) -> Any:
        return np.array([*self._x, self._t, self._changes])

    def set_state(self, state: Any) -> None:
        self._x, self._t, self._changes = np.array(state[:2]), int(state[2]), int(state[3])

    def _obs(self) -> Any:
        return np.array([*self._x, self._wind])


class Sum(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the sum of all numbers that it has received to the reward; its env may lack `on_progress`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._sum = 0.0

    def on_progress(self, numbers: dict[str, float]) -> None:
        self._sum = sum(numbers.values())

    def step(self, action: Any) -> Any:
        obs, reward, *flags = self.env.step(action)
        return obs, float(reward) + self._sum, *flags


class Level(gym.Env[Any, Any]):
    """Two steps with the number `level` as reward; `least`: a smaller one raises."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, least: float = -1.0) -> None:
        self._least, self._level, self._t = least, 0.0, 0

    def on_progress(self, numbers: dict[str, float]) -> None:
        if numbers["level"] < self._least:
            raise RuntimeError("no such level")
        self._level = numbers["level"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return np.zeros(3, np.float32), self._level, self._t >= 2, False, {}


class WindyWalkers(Walkers):
    """Agents whose sum depends on the wind."""

    _gust = _changes = 0

    def on_progress(self, numbers: dict[str, float]) -> None:
        self._gust, self._changes = int(100 * numbers["wind"]), self._changes + 1

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._changes = 0
        return super().reset((seed or 0) + self._gust, options)

    def step(self, actions: dict[str, int]) -> Any:
        self._sum += self._gust + self._changes
        return super().step(actions)


class Forwarding:
    """A parallel env behind a wrapper that forwards every name, as PettingZoo's do."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        return self.env.step(actions)


def in_processes(num_envs: int) -> Any:
    """gymnasium's vector env of envs in processes of their own."""
    return gym.vector.AsyncVectorEnv([_summed] * num_envs, context="fork")


def side_by_side(num_envs: int) -> Any:
    """gymnasium's vector env of envs in this process."""
    return gym.vector.SyncVectorEnv([_summed] * num_envs)


def _summed() -> Any:
    return Sum(gym.wrappers.TimeLimit(Level(), 9))
