"""An env whose author changes it between two attempts of a run: an environment variable names the change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VARIANT = "CHANGING_ENV"
CONSTRUCTED = "CHANGING_ENV_CONSTRUCTED"
"""File that each constructor appends a line to."""
Spaces = tuple[spaces.Space[Any], spaces.Space[Any]]


def box(low: Any = -1.0, high: Any = 1.0, shape: tuple[int, ...] = (3,), dtype: Any = np.float32) -> spaces.Space[Any]:
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype)


def several(*nvec: int, start: int = 0) -> spaces.Space[Any]:
    return spaces.MultiDiscrete(nvec, start=[start] * len(nvec))


TWO = spaces.Discrete(2)
VARIANTS: Mapping[str, Spaces] = {
    "": (box(), TWO),
    "sensor": (box(shape=(4,)), TWO),
    "column": (box(shape=(3, 1)), TWO),
    "doubles": (box(dtype=np.float64), TWO),
    "range": (box(high=2.0), TWO),
    "unbounded": (box(-np.inf, np.inf), TWO),
    "kind": (several(3, 3, 3), TWO),
    "more values": (several(3, 3, 4), TWO),
    "action": (box(), spaces.Discrete(3)),
    "start": (box(), spaces.Discrete(2, start=1)),
    "several": (box(), several(2, 3)),
    "other several": (box(), several(2, 4)),
    "shifted several": (box(), several(2, 3, start=1)),
    "continuous": (box(), box(-1.0, 1.0, (2,))),
    "stronger": (box(), box([-1.0, -2.0], [1.0, 2.0], (2,))),
    "half-open": (box(), box([-1.0, -1.0], [1.0, np.inf], (2,))),
    "third motor": (box(), box(-1.0, 1.0, (3,))),
    "named": (spaces.Dict({"a": box(), "b": TWO}), TWO),
    "renamed": (spaces.Dict({"a": box(), "c": TWO}), TWO),
    "longer part": (spaces.Dict({"a": box(shape=(5,)), "b": TWO}), TWO),
}


class Changing(gym.Env[Any, Any]):
    """Five steps an episode."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = VARIANTS[os.environ.get(VARIANT, "")]
        if CONSTRUCTED in os.environ:
            with open(os.environ[CONSTRUCTED], "a") as file:
                file.write("made\n")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._t += 1
        return self.observation_space.sample(), 1.0, self._t >= 5, False, {}
