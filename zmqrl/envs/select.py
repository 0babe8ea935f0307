"""A wrapper that shows only some entries of an observation, such as positions without velocities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Select(gym.ObservationWrapper[Any, Any, Any]):
    """For `env.wrappers`: `{"zmqrl.envs.select:Select": {entries: [0, 2]}}`."""

    def __init__(self, env: gym.Env[Any, Any], entries: Sequence[int]) -> None:
        """ValueError when the observation is not a box of one axis that has these entries."""
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"Select requires observations in a Box with one axis, found {space}")
        if not entries or not all(0 <= entry < space.shape[0] for entry in entries):
            raise ValueError(f"entries: {list(entries)}: must be indices from 0 to {space.shape[0] - 1}, at least one")
        self._entries = np.array(entries)
        low, high = space.low[self._entries], space.high[self._entries]
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """The entries, in the given order."""
        return observation[self._entries]
