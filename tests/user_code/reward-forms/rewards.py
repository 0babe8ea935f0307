import gymnasium as gym
import numpy as np


class R(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward="array", done="bool", at=5):
        self.kind, self.done, self.at = reward, done, at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        reward = {
            "array": np.array([1.0]),
            "array2": np.array([1.0, 2.0]),
            "none": None,
            "bool": True,
            "text": "1.0",
            "float32": np.float32(1),
            "zero_d": np.array(1.0),
            "complex": 1 + 0j,
            "list": [1.0],
            "huge": 1e30,
            "tiny": 1e-30,
            "1e9": 1e9,
        }[self.kind]
        over = self.t >= 20
        done = {
            "bool": over,
            "np": np.bool_(over),
            "array": np.array([over]),
            "none": None if not over else True,
            "int": int(over),
            "array2": np.array([over, over]),
            "list": [over],
        }[self.done]
        return np.zeros(3, np.float32), reward, done, False, {}
