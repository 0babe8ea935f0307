"""Observations, rewards and flags of a wrong form, in composite spaces and in later steps."""

import decimal

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Parts(gym.Env):
    """A Dict in a Tuple; `what` names the part that is wrong from the third step on."""

    observation_space = spaces.Tuple(
        (
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Dict(image=spaces.Box(0, 255, (4,), np.uint8), kind=spaces.Discrete(3)),
        )
    )
    action_space = spaces.Discrete(2)

    def __init__(self, what=""):
        self.what, self.t = what, 0

    def _obs(self):
        vector, image, kind = np.zeros(2, np.float32), np.zeros(4, np.uint8), 1
        if self.t >= 3:
            vector = np.full(2, np.nan) if self.what == "nan" else vector
            image = {"float": np.full(4, 0.5), "large": np.full(4, 256, np.int32)}.get(self.what, image)
            kind = {"float kind": 1.5, "kind": 3}.get(self.what, kind)
        return vector, {"image": image, "kind": kind}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        reward = {"decimal": decimal.Decimal("1.0"), "object": np.array(["1"], object)}.get(self.what, 1.0)
        cut = {"tuple": (False,), "text": "False"}.get(self.what, False)
        return self._obs(), reward, self.t >= 20, cut, {}


class Bounds(gym.Env):
    """Actions within bounds that a float32 cannot subtract, or that are equal in one entry of several."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, how="wide"):
        low, high = np.zeros(3), np.ones(3)
        if how == "wide":
            low[1], high[1] = -2e38, 2e38
        else:
            low[2] = 1.0
        self.action_space = spaces.Box(low, high, dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t >= 20, False, {}


class Sensor(gym.Env):
    """Its bounds and the first number of its actions depend on the constructor."""

    def __init__(self, high=1.0, start=0):
        self.observation_space = spaces.Box(-high, high, (3,), np.float32)
        self.action_space = spaces.Discrete(2, start=start)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t >= 20, False, {}
