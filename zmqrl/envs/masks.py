"""Masks of actions that an env has outside of its observations, as the part `action_mask` of a Dict."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from zmqrl.types import EnvSpec

METHOD, KEY, PART = "action_masks", "action_mask", "action_mask"


class FromMethod(gym.Wrapper[Any, Any, Any, Any]):
    """The mask that a method of the env returns, as sb3-contrib has it.

    Observations that are a Dict receive a further part; others become the part `observation` of one.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str = METHOD) -> None:
        """`name`: of the method."""
        super().__init__(env)
        self._name, self._size = name, int(spaces.flatdim(env.action_space))
        parts = env.observation_space.spaces if isinstance(env.observation_space, spaces.Dict) else None
        self._is_dict = parts is not None
        mask = spaces.Box(0, 1, (self._size,), np.int8)
        self.observation_space = spaces.Dict({**(parts or {"observation": env.observation_space}), PART: mask})

    def reset(self, **options: Any) -> Any:
        """Reset of the env, with the mask in the observation."""
        obs, info = self.env.reset(**options)
        return self._with_mask(obs, info, False), info

    def step(self, action: Any) -> Any:
        """Step of the env, with the mask in the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, bool(terminated or truncated)), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: Any, is_over: bool) -> Any:
        mask = np.asarray(self._mask(info, is_over), bool).astype(np.int8)
        return {**(obs if self._is_dict else {"observation": obs}), PART: mask}

    def _mask(self, info: Any, is_over: bool) -> Any:
        return self.get_wrapper_attr(self._name)()


class FromInfo(FromMethod):
    """The mask in `info`, as the envs of gymnasium have it."""

    def __init__(self, env: gym.Env[Any, Any], name: str = KEY) -> None:
        """`name`: of the key."""
        super().__init__(env, name)

    def _mask(self, info: Any, is_over: bool) -> Any:
        if self._name not in info and is_over:  # no action follows
            return np.ones(self._size)
        return info[self._name]


def ignored_mask(env: Any, spec: EnvSpec) -> str | None:
    """That `env` has a mask outside of its observations, and the wrapper for it; None: it has none. Resets `env`."""
    if not isinstance(env, gym.Env) or spec.observation.action_mask is not None or not spec.action.choices:
        return None
    what, wrapper, info = f"the method {METHOD}", FromMethod, {}
    if not env.has_wrapper_attr(METHOD):
        with suppress(Exception):  # of a reset that the first steps report
            info = env.reset(seed=0)[1]
        if KEY not in info:
            return None
        what, wrapper = f"{KEY!r} in info", FromInfo
    fix = f"env.wrappers: [{__name__}:{wrapper.__name__}] trains with it (docs/envs.md, 'Action masks')"
    return f"{spec.id!r} has {what}, which is ignored; {fix}"
