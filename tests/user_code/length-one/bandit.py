"""Every episode has one step (contextual bandit): the best action is the sign of the observation."""

import gymnasium as gym
import numpy as np


class Bandit(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        return self.x, float((self.x[0] > 0) == bool(action)), True, False, {}
