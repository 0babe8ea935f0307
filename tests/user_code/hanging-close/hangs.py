import time

import gymnasium as gym
import numpy as np


class Base(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, where="close"):
        self.where = where
        if where == "init":
            time.sleep(100_000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, {}

    def close(self):
        if self.where == "close":
            time.sleep(100_000)
