"""The env ends its process politely: sys.exit, as pygame examples do."""

import sys

import gymnasium as gym
import numpy as np


class Exits(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, at=300, code=0, how="exit", where="step"):
        self.at, self.code, self.how, self.where, self.n = at, code, how, where, 0
        if where == "init":
            self.end()

    def end(self):
        if self.how == "exit":
            sys.exit(self.code)
        raise KeyboardInterrupt

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.where == "reset" and self.n:
            self.end()
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        self.n += 1
        if self.n >= self.at and self.where == "step":
            self.end()
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, {}
