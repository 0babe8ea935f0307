"""CartPole whose sensors are integers (encoder ticks, prices, counters): the same information, in other units."""

import gymnasium as gym
import numpy as np


class IntPole(gym.ObservationWrapper):
    def __init__(self, dtype="int32", scale=10_000):
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self.dtype, self.scale = np.dtype(dtype), scale
        bound = 10**8
        self.observation_space = gym.spaces.Box(-bound, bound, (4,), self.dtype)

    def observation(self, obs):
        return (obs * self.scale).astype(self.dtype)
