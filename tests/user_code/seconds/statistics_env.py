"""An env that scales its observations by the largest one of all of its episodes."""

import gymnasium as gym
import numpy as np


class Scaled(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-1, 1, env.observation_space.shape, np.float32)
        self.largest = np.full(env.observation_space.shape, 1e-6, np.float32)

    def _scaled(self, obs):
        self.largest = np.maximum(self.largest, np.abs(obs))
        return (obs / self.largest).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return self._scaled(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return self._scaled(obs), *rest
