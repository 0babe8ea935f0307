"""The first observation has the dtype of the space, later ones do not (np.zeros(..., uint8) in reset)."""

import gymnasium as gym
import numpy as np


class Steps(gym.Env):
    """The agent sees `what`; reward 1 for action 1 if the observed number is large. Solvable only if it is seen."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, what="fraction"):
        self.what = what
        dtype = np.uint8 if what != "negative" else np.int8
        self.observation_space = gym.spaces.Box(0, 100, (3,), dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, self.observation_space.dtype), {}

    def step(self, action):
        self.t += 1
        if self.what == "fraction":  # float32 into a uint8 space: 0.7 -> 0
            obs = np.full(3, 0.7, np.float32)
        elif self.what == "large":  # int64 into a uint8 space: 300 -> 44
            obs = np.full(3, 300, np.int64)
        elif self.what == "negative":  # int64 into an int8 space: -200 -> 56
            obs = np.full(3, -200, np.int64)
        else:  # "nan": NaN into uint8
            obs = np.full(3, np.nan, np.float32)
        return obs, float(action), self.t >= 10, False, {}
