"""Train on levels 0..9, evaluate on unseen ones, as Procgen or a trading env with a test period."""

import gymnasium as gym
import numpy as np


class Levels(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, first=0, count=10):
        self.first, self.count = first, count

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.first + int(self.np_random.integers(self.count))
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), float(self.level >= 1000), self.t >= 20, False, {}
