"""Envs and wrappers for keys: an index in the environment, masks in `info`, a factory of vector envs, half a state."""

import os

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled


class Locked(gym.Env):
    """Every copy locks a file that its index names."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, folder="."):
        self.path = os.path.join(folder, f"copy-{os.environ['ZMQRL_ENV_INDEX']}")
        self.file = os.open(self.path, os.O_CREAT | os.O_EXCL)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t >= 20, False, {"action_mask": np.array([1, 0, 1], np.int8)}

    def close(self):
        os.close(self.file)
        os.unlink(self.path)


class HalfState(gym.Env):
    """`set_state` restores the position and leaves the random numbers as they are."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def get_state(self):
        return self.position.tobytes()

    def set_state(self, state):
        self.position = np.frombuffer(bytes(state), np.float32).copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.position = 0, np.zeros(2, np.float32)
        return self.position, {}

    def step(self, action):
        self.t += 1
        self.position = (0.9 * self.position + self.np_random.normal(size=2)).astype(np.float32)
        return self.position, 1.0, self.t >= 500, False, {}


def scaled(reward):
    return 0.1 * reward


def needs_package(env):
    raise DependencyNotInstalled("simpy is not installed, run `pip install simpy`")
