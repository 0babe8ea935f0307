"""Other APIs under other names: an old env without a base class, an AEC env of PettingZoo, an env object, a VecEnv."""

import gymnasium as gym
import numpy as np


class Duck:
    """Has everything but the base class."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t > 9, False, {}


class Config(gym.Env):
    """RLlib's form: one dict, with the worker's index in it."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.length = config.get("length", 10)
        self.index = getattr(config, "worker_index", None)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t >= self.length, False, {}


def aec(**kwargs):
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env(**kwargs)
