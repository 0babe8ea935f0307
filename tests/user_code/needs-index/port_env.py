"""As ML-Agents, CARLA, SUMO: every copy needs a number of its own (a port). With a fixed one the second copy fails."""

import socket

import gymnasium as gym
import numpy as np


class Port(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, base_port=45005, worker_id=0):
        self.server = socket.socket()
        try:
            self.server.bind(("127.0.0.1", base_port + worker_id))
        except OSError as error:
            raise RuntimeError(f"worker number {worker_id} is still in use; use a different worker number") from error

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), float(action), self.t >= 20, False, {}

    def close(self):
        self.server.close()
