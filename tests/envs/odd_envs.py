"""Envs that break a rule at a given step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counting(gym.Env[Any, Any]):
    """Observes (reset seed, steps, last action); ends after `length` steps by termination, or truncates."""

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(4, start=1)
        self._length, self._truncate = length, truncate

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed, self._t = seed, 0
        return np.array([self._seed, 0.0, -1.0]), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        ended = self._t >= self._length
        obs = np.array([self._seed, self._t, action], float)
        return obs, 1.0, ended and not self._truncate, ended and self._truncate, {}


class Breaking(Counting):
    def __init__(self, fault: str, at: int = 3) -> None:
        super().__init__(length=100)
        self._fault, self._at, self._resets = fault, at, 0

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self._resets += 1
        if self._fault == "reset" or (self._fault == "late reset" and self._resets == 30):
            raise RuntimeError("no reset today")
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._t == self._at:
            if self._fault == "raise":
                raise RuntimeError("the robot fell over")
            if self._fault == "nan":
                obs[1] = np.nan
            if self._fault == "shape":
                obs = obs[:1]
            if self._fault == "reward":
                reward = "much"
            if self._fault == "nan_reward":
                reward = float("nan")
            if self._fault == "short":
                return obs, reward
        return obs, reward, terminated, truncated, info


class Constant(gym.Env[Any, Any]):
    """One observation and reward 1 for ever: the value of each action is 1 / (1 - gamma)."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 1.0, False, False, {}


class Walker(gym.Env[Any, Any]):
    """Deterministic, chaotic enough that one wrong action shows; bounded box actions."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = self.np_random.random(2), 0
        return self._x.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        self._t += 1
        self._x = (self._x * 3.7 * (1.0 - self._x) + 0.01 * float(np.ravel(action)[0])) % 1.0
        return self._x.astype(np.float32), float(self._x[0]), bool(self._x[1] < 0.05), self._t >= 30, {}


class Offset(Walker):
    """The same with three discrete actions that count from `start`."""

    def __init__(self, start: int = -1) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3, start=start)


class Frames(Offset):
    """The same as grey images `[8, 8]`: single frames, as those of a camera."""

    def __init__(self) -> None:
        super().__init__(start=0)
        self.observation_space = spaces.Box(0, 255, (8, 8), np.uint8)

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return self._frame(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self._frame(obs), *rest

    def _frame(self, obs: Any) -> Any:
        return np.outer(np.linspace(0, 255 * obs[0], 8), np.linspace(0, obs[1], 8)).astype(np.uint8)


class Lottery(gym.Env[Any, Any]):
    """Rewards at random; an episode of 4 steps terminates, or is truncated."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)

    def __init__(self, kind: str) -> None:
        self.action_space: gym.Space[Any] = {
            "discrete": spaces.Discrete(3, start=2),
            "several": spaces.MultiDiscrete([2, 3], start=[0, 1]),
            "box": spaces.Box(-0.5, 0.5, (2, 1), np.float32),
        }[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._drawn(2), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        ended, cut = self.t == 4, bool(self.np_random.integers(2))
        return self._drawn(2), float(self._drawn(1)[0]), ended and not cut, ended and cut, {}

    def _drawn(self, size: int) -> Any:
        return self.np_random.normal(size=size).astype(np.float32)


class Stateful(gym.Env[Any, Any]):
    """Draws noise in every step, and can be put into any state it was in; `form`: array, bytes, or what is refused."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, form: str = "array") -> None:
        self._form = form
        self._seed = self._t = 0
        self._x = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed, self._t, self._x = seed or 0, 0, 0.0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._seed = (1103515245 * self._seed + 12345) % (1 << 31)
        self._x = 0.9 * self._x + action + self._seed / (1 << 31)
        return self._obs(), self._x, self._seed % 11 == 0, self._seed % 13 == 0, {}

    def get_state(self) -> Any:
        if self._form == "grows":
            return bytes(8 + self._t)
        state = np.array([self._seed, self._t, self._x])
        return {"array": state, "bytes": state.tobytes()}.get(self._form, {"x": self._x})

    def set_state(self, state: Any) -> None:
        values = np.frombuffer(state) if self._form == "bytes" else state
        self._seed, self._t, self._x = int(values[0]), int(values[1]), float(values[2])

    def _obs(self) -> Any:
        return np.array([self._x, float(self._t)])
