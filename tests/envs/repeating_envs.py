"""Envs and wrappers with state outside of an episode, and pairs of `get_state` and `set_state` that lack a part."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Saved(gym.Env[Any, Any]):
    """A noisy walk of `length` steps. `without`: what its state lacks."""

    def __init__(self, without: str = "", length: int = 40) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Discrete(3)
        self._without, self._length = without, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t, self._x, self._best = 0, 0.0, 0.0
        return np.array([self._x]), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._x += float(action) - 1.0 + self.np_random.normal()
        gain, self._best = max(0.0, self._x - self._best), max(self._x, self._best)
        return np.array([self._x]), gain, self._t >= self._length, False, {}

    def get_state(self) -> Any:
        state = self.np_random.bit_generator.state["state"]
        words = [(number >> shift) & 0xFFFFFFFF for number in state.values() for shift in (0, 32, 64, 96)]
        return np.array([self._t, self._x, self._best, *words])

    def set_state(self, state: Any) -> None:
        if self._without == "everything":
            raise ValueError("no such state")
        t, x, best, *words = state.tolist()
        self._x = x
        self._t = self._t if self._without == "counter" else int(t)
        self._best = self._best if self._without == "maximum" else best
        if self._without != "generator":
            state, inc = (sum(int(words[i + place]) << 32 * place for place in range(4)) for i in (0, 4))
            whole = self.np_random.bit_generator.state
            self.np_random.bit_generator.state = {**whole, "state": {"state": state, "inc": inc}}


class Foreign(gym.Env[Any, Any]):
    """Its pair is for a planner: an object, of a part of the env. `length`: steps of an episode, or no limit."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def get_state(self) -> Any:
        raise AssertionError("zmqrl was not asked to call it")

    def set_state(self, state: Any) -> None:
        raise AssertionError("zmqrl was not asked to call it")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, float(obs[0]), bool(obs[1] > 0.9), False, {}
