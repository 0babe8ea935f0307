import os

import gymnasium as gym
import numpy as np


class V(gym.Env):
    """The author adds a sensor, or an action, between two attempts."""

    def __init__(self):
        n = int(os.environ.get("SENSORS", "3"))
        self.observation_space = gym.spaces.Box(-1, 1, (n,), np.float32)
        self.action_space = gym.spaces.Discrete(int(os.environ.get("ACTIONS", "2")))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(self.observation_space.shape, np.float32), float(action), self.t >= 20, False, {}
