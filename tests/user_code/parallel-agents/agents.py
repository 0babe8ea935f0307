"""Parallel envs of which agents die, are born again, or leave without a last observation."""

import numpy as np
from gymnasium import spaces


class Mortal:
    metadata = {"name": "mortal"}  # noqa: RUF012

    def __init__(self, how="dies", n=3):
        self.how, self.possible_agents = how, [f"a{i}" for i in range(n)]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        if self.how == "absent":
            self.agents.remove("a2")
        return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), (sorted(actions), self.agents)
        self.t += 1
        acting = list(self.agents)
        ended = dict.fromkeys(acting, self.t >= 12)
        if "a1" in acting and self.t == 4:
            ended["a1"] = True
        obs = {a: np.zeros(2, np.float32) for a in acting}
        reward = dict.fromkeys(acting, 1.0)
        if self.how == "noobs" and self.t == 4 and "a1" in obs:
            del obs["a1"]
        if self.how == "noreward" and self.t == 4:
            del reward["a1"]
        if self.how == "allkeys":  # flags for all agents, also those that are gone (supersuit, old envs)
            for a in self.possible_agents:
                ended.setdefault(a, True)
                obs.setdefault(a, np.zeros(2, np.float32))
                reward.setdefault(a, 0.0)
        self.agents = [a for a in acting if not ended[a]]
        if self.how == "reborn" and self.t == 6:
            self.agents.append("a1")
            obs["a1"] = np.zeros(2, np.float32)
        return obs, reward, ended, dict.fromkeys(ended, False), {a: {} for a in ended}
