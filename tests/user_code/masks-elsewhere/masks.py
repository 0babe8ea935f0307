"""Masks as sb3-contrib (a method) and gymnasium's toy-text envs (info) give them; an illegal action is an error."""

import gymnasium as gym
import numpy as np


class Masked(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, strict=False):
        self.strict, self.illegal = strict, 0

    def action_masks(self):
        mask = np.zeros(4, np.int8)
        mask[self.t % 4] = 1
        return mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {"action_mask": self.action_masks()}

    def step(self, action):
        if not self.action_masks()[action]:
            if self.strict and self.t > 2:
                raise ValueError("illegal action")
            reward = -1.0
        else:
            reward = 1.0
        self.t += 1
        return np.zeros(3, np.float32), reward, self.t >= 20, False, {"action_mask": self.action_masks()}
