"""Constant observation, reward 1: V = 1/(1-gamma) = 10 with gamma .9 where the end is a truncation."""

import gymnasium as gym
import numpy as np


class One(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=4, end="truncated", box=False):
        self.length, self.end = length, end
        if box:
            self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        # the final observation of an episode is another one (0); its value is never trained on as a start
        return (
            np.ones(1, np.float32),
            1.0,
            over and self.end in ("terminated", "both"),
            over and self.end in ("truncated", "both"),
            {},
        )
