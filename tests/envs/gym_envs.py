"""Envs with the returns of gym before 0.26, and other wrong ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.envs.odd_envs import Counting


class OldReset(Counting):
    def __init__(self, returns: str = "obs") -> None:
        super().__init__()
        self._returns = returns

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return {"obs": obs, "none": None}[self._returns]


class ResetWithoutSeed(Counting):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def limited() -> gym.Env[Any, Any]:
    return gym.Wrapper(ResetWithoutSeed())


class OldStep(Counting):
    def __init__(self, returns: str = "four") -> None:
        super().__init__()
        self._returns = returns

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return {"four": (obs, reward, False, info), "none": None, "obs": np.zeros(5)}[self._returns]


def behind_a_wrapper() -> gym.Env[Any, Any]:
    return gym.Wrapper(OldStep())


class OldParallel:
    """PettingZoo before 1.23."""

    possible_agents = ("a",)

    def __init__(self, old: str) -> None:
        self._env, self._old, self.agents = Counting(), old, ["a"]

    def observation_space(self, agent: str) -> Any:
        del agent
        return self._env.observation_space

    def action_space(self, agent: str) -> Any:
        del agent
        return self._env.action_space

    def reset(self, **options: Any) -> Any:
        obs = {"a": self._env.reset(**options)[0]}
        return obs if self._old == "reset" else (obs, {})

    def step(self, actions: Any) -> Any:
        obs, reward, ended, _, info = self._env.step(actions["a"])
        return {"a": obs}, {"a": reward}, {"a": ended}, {"a": info}

    def close(self) -> None:
        pass
