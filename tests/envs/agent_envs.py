"""Multi-agent envs with the parallel API of PettingZoo, without the package."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

AGENTS = ("left", "right", "middle")


class Walkers:
    """Each agent walks on its own line and leaves at its own end; deterministic by the seed, and by all actions."""

    observation_spec = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    metadata: dict[str, Any] = {"name": "walkers_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, fault: str = "", at: int = 4, length: int = 8) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str]
        """Exists after a reset, as in some envs of PettingZoo."""
        self._actions = {agent: spaces.Discrete(3) for agent in AGENTS}
        self._fault, self._at, self._length = fault, at, length

    @property
    def unwrapped(self) -> Walkers:
        return self

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        if self._fault == "spaces" and agent == "middle":
            return spaces.Box(-1, 1, (2,), np.float32)
        return self.observation_spec

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        del options
        self.agents = list(AGENTS[:2] if self._fault == "late" else AGENTS)
        self._t, self._sum = 0, (seed or 0) % 1009
        self._at_of = dict.fromkeys(AGENTS, 0)
        return {agent: self._seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents), f"{sorted(actions)} act, {sorted(self.agents)} are there"
        self._t += 1
        if self._fault == "raise" and self._t == self._at:
            raise RuntimeError("the rope broke")
        for agent, action in actions.items():
            self._sum = (self._sum * 31 + action * 7 + len(agent)) % 1009
            self._at_of[agent] += 1 + action
        obs = {agent: self._seen(agent) for agent in actions}
        if self._fault == "nan" and self._t == self._at:
            obs["right"] = np.full(3, np.nan, np.float32)
        if self._fault == "silent" and self._t == self._at:
            obs.pop("right", None)
        ends = {agent: self._at_of[agent] >= self._length + len(agent) for agent in actions}
        reward = {agent: float(actions[agent]) - 0.25 for agent in actions}
        self.agents = [agent for agent in self.agents if not ends[agent]]
        if self._fault == "gone" and self._t == self._at:
            self.agents = self.agents[1:]
        none = dict.fromkeys(actions, False)
        return obs, reward, ends, none, {agent: {} for agent in actions}

    def close(self) -> None:
        self.agents = []

    def _seen(self, agent: str) -> Any:
        return np.array([self._sum, self._at_of[agent], self._t], np.float32) / 64


class Numbered:
    """Agents 0 and 1, for five steps; no `close`."""

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as PettingZoo has it
    possible_agents = (0, 1)

    def observation_space(self, agent: int) -> spaces.Space[Any]:
        del agent
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: int) -> spaces.Space[Any]:
        del agent
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        del seed, options
        self.agents, self._t = list(self.possible_agents), 0
        return {agent: np.full(1, agent, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[int, int]) -> Any:
        self._t += 1
        obs = {agent: np.full(1, agent, np.float32) for agent in actions}
        reward = {agent: float(action) for agent, action in actions.items()}
        ends = dict.fromkeys(actions, self._t == 5)
        self.agents = [] if self._t == 5 else self.agents
        return obs, reward, ends, dict.fromkeys(actions, False), {}


class Seesaw(Walkers):
    """One is rewarded for action 0, the other for action 2; each is told which it is. 8 steps."""

    observation_spec = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        self._t += 1
        wanted = {"left": 0, "right": 2, "middle": 1}
        reward = {agent: float(action == wanted[agent]) for agent, action in actions.items()}
        obs = {agent: self._seen(agent) for agent in actions}
        over = dict.fromkeys(actions, self._t >= 8)
        if self._t >= 8:
            self.agents = []
        return obs, reward, over, dict.fromkeys(actions, False), {agent: {} for agent in actions}

    def _seen(self, agent: str) -> Any:
        return np.array([agent == "left", agent == "right"], np.float32)
