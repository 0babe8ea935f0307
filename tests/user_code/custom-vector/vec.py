"""A simulator that is vectorised itself: gymnasium.vector.VectorEnv, as Brax, EnvPool, IsaacLab."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Vec(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs=4, mode="next"):
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP if mode == "next" else AutoresetMode.SAME_STEP}

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros(self.num_envs, int)
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        over = self.t >= 20
        self.t = np.where(over, 0, self.t + 1)
        ended = self.t >= 20
        reward = np.where(over, 0.0, 1.0)
        return np.zeros((self.num_envs, 3), np.float32), reward, ended, np.zeros(self.num_envs, bool), {}


class Single(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)


gym.register("VecOnly-v0", vector_entry_point="vec:Vec")
