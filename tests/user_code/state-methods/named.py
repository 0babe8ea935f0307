"""An env with methods `get_state` and `set_state` of its own, with another meaning, as robosuite has."""

import gymnasium as gym
import numpy as np


class Named(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def get_state(self):
        return {"t": self.t}  # for a planner

    def set_state(self, state):
        self.t = state["t"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t > 9, False, {}
