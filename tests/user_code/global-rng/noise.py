"""An old env that draws from numpy's global generator and never seeds it."""

import os
import random

import gymnasium as gym
import numpy as np


class Noise(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        x = np.random.uniform(-1, 1, 3).astype(np.float32)
        with open(os.environ["NOISE_FILE"], "a") as f:
            f.write(f"{os.getpid()} {x.tolist()} {random.random()}\n")
        return x, {}

    def step(self, action):
        self.t += 1
        return np.random.uniform(-1, 1, 3).astype(np.float32), float(action), self.t >= 20, False, {}
