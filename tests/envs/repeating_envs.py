"""Envs and wrappers with state outside of an episode, and pairs of `get_state` and `set_state` that lack a part."""

from __future__ import annotations

import time
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


class Slow(Saved):
    def step(self, action: Any) -> Any:
        time.sleep(0.04)
        return super().step(action)


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


class Harder(gym.Wrapper[Any, Any, Any, Any]):
    """Pays less for each episode that has ended before."""

    ended = 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        found = obs, float(reward) / (1 + self.ended), terminated, truncated, info
        self.ended += bool(terminated or truncated)
        return found


class Drawn(gym.ObservationWrapper[Any, Any, Any]):
    """Noise of the process, which no seed of `reset` restores."""

    def observation(self, observation: Any) -> Any:
        return (observation + np.random.normal(size=observation.shape)).astype(observation.dtype)


class Levels(gym.Env[Any, Any]):
    """Each reset begins the next level, whatever the seed."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    level = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.level += 1
        return np.full(2, 1.0 / self.level, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(2, 1.0 / self.level, np.float32), 1.0, bool(self.np_random.random() < 0.2), False, {}


class ContinuesInTraining(gym.Wrapper[Any, Any, Any, Any]):
    """Does not reset the env before it has ended; scores are of whole episodes."""

    over, scored = True, False

    def score_full_episodes(self) -> None:
        self.scored = True

    def reset(self, **options: Any) -> Any:
        if not (self.over or self.scored):
            return self.last, {}
        self.over = False
        self.last, info = self.env.reset(**options)
        return self.last, info

    def step(self, action: Any) -> Any:
        self.last, reward, terminated, truncated, info = self.env.step(action)
        self.over = bool(terminated or truncated)
        return self.last, reward, terminated, truncated, info


class OneAtATime(gym.Env[Any, Any]):
    """As a simulator with one licence, whose levels advance over episodes."""

    observation_space, action_space = Levels.observation_space, Levels.action_space
    running = 0

    def __init__(self) -> None:
        assert OneAtATime.running == 0, "the licence is in use"
        OneAtATime.running, self._is_open, self._env = 1, True, Levels()

    def reset(self, **options: Any) -> Any:
        return self._env.reset(**options)

    def step(self, action: Any) -> Any:
        return self._env.step(action)

    def close(self) -> None:
        OneAtATime.running -= self._is_open
        self._is_open = False
