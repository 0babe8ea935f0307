"""A continuing task without an end and without a step limit: trading, heating, a robot that balances."""

import gymnasium as gym
import numpy as np


class Forever(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float(action), False, False, {}
