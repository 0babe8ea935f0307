"""Envs of gymnasium's vector API, and of APIs that zmqrl names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 20


class Vec(VectorEnv[Any, Any, Any]):
    """Episodes of 20 steps with reward 1; `mode`: its autoreset."""

    def __init__(self, num_envs: int = 4, mode: str | None = "NEXT_STEP", parts: bool = False) -> None:
        self.num_envs = num_envs
        box = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_observation_space = gym.spaces.Dict({"a": box, "b": box}) if parts else box
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {} if mode is None else {"autoreset_mode": AutoresetMode[mode]}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self._t = np.zeros(self.num_envs, int)
        self._over = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        self._t = np.where(self._over, 0, self._t + 1)
        reward = np.where(self._over, 0.0, 1.0)
        self._over = self._t >= LENGTH
        return np.zeros((self.num_envs, 3), np.float32), reward, self._over, np.zeros(self.num_envs, bool), {}


def made(num_envs: int, mode: str = "NEXT_STEP") -> Vec:
    return Vec(num_envs, mode)


def of_its_own_number() -> Vec:
    return Vec(3)


gym.register("VecOnly-v0", vector_entry_point=f"{__name__}:Vec")


class Duck:
    """An env without the base class, as those of the old gym."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 1.0, False, {}


class Aec:
    """The names of PettingZoo's AEC API."""

    possible_agents = ("a", "b")

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        pass

    def agent_iter(self) -> Any:
        return iter(self.possible_agents)

    def step(self, action: Any) -> None:
        pass


class Configured(gym.Env[Any, Any]):
    """RLlib's form."""

    def __init__(self, config: Any) -> None:
        self.length = config["length"]


def needs_a_package() -> None:
    raise gym.error.DependencyNotInstalled("MoviePy is not installed, run `pip install moviepy`\nmore text")
