"""Envs with every space that is supported, each deterministic by its seed."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS = 4


class _Seeded(gym.Env[Any, Any]):
    """A state of 64 bits that every action changes; an episode ends about every tenth step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._x, self._t = (seed or 0) * 2654435761 % (1 << 32), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        self._t += 1
        total = int(np.sum(np.asarray(action, float) * 1000))
        self._x = (self._x * 1103515245 + 12345 + total) % (1 << 32)
        return self._obs(), self._x / (1 << 32), self._draw(9) % 11 == 0, self._t >= 30, {}

    def _draw(self, salt: int) -> int:
        return (self._x * 6364136223846793005 + salt * 1442695040888963407) % (1 << 64) >> 40

    def _obs(self) -> Any:
        raise NotImplementedError


class Mixed(_Seeded):
    """A Dict of an image, a vector, a nested Tuple and a mask of the actions."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 5, 5), np.uint8),
            "inner": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1, 1, (2,), np.float64))),
            "action_mask": spaces.MultiBinary(ACTIONS),
            "vector": spaces.Box(-1, 1, (3,), np.float32),
        }
    )
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, fault: str = "", at: int = 2) -> None:
        self._fault, self._at = fault, at

    def step(self, action: Any) -> Any:
        assert self._mask()[action], f"action {action} is forbidden"
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            obs["action_mask"] = np.zeros(ACTIONS, np.int8)  # a finished game allows nothing
        if self._t == self._at:
            obs = self._broken(obs)
        return obs, reward, terminated, truncated, info

    def _broken(self, obs: Any) -> Any:
        if self._fault == "nan":
            obs["inner"][1][0] = np.nan
        if self._fault == "missing":
            del obs["vector"]
        if self._fault == "shape":
            obs["image"] = obs["image"][:, :, :3]
        if self._fault == "range":
            obs["inner"] = (2, obs["inner"][1])
        if self._fault == "dtype":
            obs["image"] = obs["image"] / 2
        if self._fault == "mask":
            obs["action_mask"] = np.zeros(ACTIONS, np.int8)
        if self._fault == "array":
            obs = obs["vector"]
        return obs

    def _mask(self) -> Any:
        bits = self._draw(1) % (2**ACTIONS - 1) + 1
        return np.array([(bits >> n) & 1 for n in range(ACTIONS)], np.int8)

    def _obs(self) -> Any:
        image = np.arange(75).reshape(3, 5, 5) * (self._draw(2) % 97 + 1) % 256
        vector = np.array([self._draw(n) % 1000 / 1000 for n in (3, 4, 5)], np.float32)
        inner = (self._draw(6) % 3 - 1, np.array([self._draw(n) % 1000 / 1000 for n in (7, 8)]))
        return {"image": image.astype(np.uint8), "inner": inner, "action_mask": self._mask(), "vector": vector}


class Pair(_Seeded):
    """A Tuple of float32 vectors; MultiDiscrete actions of another start, dtype and shape."""

    observation_space = spaces.Tuple(
        (spaces.Box(0, 1, (2,), np.float32), spaces.Dict({"b": spaces.Box(-9, 9, (1, 2), np.float32)}))
    )
    action_space = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), dtype=np.int32, start=np.array([[0, -1], [5, 0]]))

    def _obs(self) -> Any:
        first, second = ([self._draw(n) % 1000 / 1000, self._draw(n + 1) % 9] for n in (1, 3))
        return np.array(first, np.float32) % 1, {"b": np.array([second], np.float32)}


class Numbered(_Seeded):
    """Discrete observations that count from `start`; MultiBinary actions."""

    action_space = spaces.MultiBinary(3)

    def __init__(self, start: int = 5, outside: bool = False) -> None:
        self.observation_space = spaces.Discrete(6, start=start)
        self._start, self._outside = start, outside

    def _obs(self) -> Any:
        return self._start + (6 if self._outside and self._t == 2 else self._draw(1) % 6)


class Several(_Seeded):
    """MultiDiscrete observations; a box of float actions."""

    observation_space = spaces.MultiDiscrete([3, 5, 2], start=[0, 1, 0])
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self) -> Any:
        return np.array([self._draw(1) % 3, self._draw(2) % 5 + 1, self._draw(3) % 2])


class HalfBounded(_Seeded):
    """A box of float actions with entries that have no bound, one on either side, and both."""

    observation_space = spaces.Box(np.array([0, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    action_space = spaces.Box(
        np.array([[-np.inf, 0], [-np.inf, -1]], np.float32), np.array([[np.inf, np.inf], [2.5, 1]], np.float32)
    )

    def _obs(self) -> Any:
        return np.array([self._draw(1) % 1000 / 1000, self._draw(2) % 1000], np.float32)


class Bits(_Seeded):
    """MultiBinary observations of two axes."""

    observation_space = spaces.MultiBinary((2, 3))
    action_space = spaces.Discrete(2)

    def _obs(self) -> Any:
        return np.array([[self._draw(3 * row + column) % 2 for column in range(3)] for row in range(2)], np.int8)


class MaskedSeveral(_Seeded):
    """MultiDiscrete actions with a mask of all their values."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(0, 1, (1,), np.float32), "action_mask": spaces.Box(0, 1, (5,), np.bool_)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def step(self, action: Any) -> Any:
        mask = self._mask()
        assert mask[action[0]] and mask[2 + action[1]], f"{action} is forbidden by {mask}"
        return super().step(action)

    def _mask(self) -> Any:
        one, other = self._draw(1) % 3 + 1, self._draw(2) % 7 + 1
        return np.array([one & 1, one & 2, other & 1, other & 2, other & 4]).astype(bool)

    def _obs(self) -> Any:
        return {"x": np.array([self._draw(3) % 1000 / 1000], np.float32), "action_mask": self._mask()}


class MaskedBandit(gym.Env[Any, Any]):
    """One step an episode: reward 1 for action 1, if it is allowed; action 2 has reward 2 and is always forbidden."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(0, 1, (1,), np.float32)})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert action != 2, "action 2 is forbidden"
        return self._obs(), float(action == 1), True, False, {}

    def _obs(self) -> Any:
        return {"action_mask": np.array([1, 1, 0], np.int8), "x": np.zeros(1, np.float32)}


class Of(gym.Env[Any, Any]):
    """An env of any spaces, which cannot be stepped: `observation` and `action` are names of `SPACES`."""

    SPACES: ClassVar[dict[str, gym.Space[Any]]] = {
        "box": spaces.Box(-1, 1, (2,), np.float32),
        "text": spaces.Text(4),
        "sequence": spaces.Sequence(spaces.Discrete(2)),
        "inner text": spaces.Dict({"a": spaces.Dict({"b": spaces.Text(4)})}),
        "twice": spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}),
        "empty": spaces.Dict({}),
        "mask of 3": spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Discrete(2)}),
        "float mask": spaces.Dict({"action_mask": spaces.Box(0, 1, (4,), np.float32), "x": spaces.Discrete(2)}),
        "discrete": spaces.Discrete(4),
        "int box": spaces.Box(0, 9, (2,), np.int64),
    }

    def __init__(self, observation: str = "box", action: str = "discrete") -> None:
        self.observation_space, self.action_space = self.SPACES[observation], self.SPACES[action]


class Unmasked(Mixed):
    """The same without a mask: what PPO and DQN train."""

    observation_space = spaces.Dict({k: v for k, v in Mixed.observation_space.items() if k != "action_mask"})

    def _mask(self) -> Any:
        return np.ones(ACTIONS, np.int8)

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {name: value for name, value in obs.items() if name != "action_mask"}, *rest

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return {name: value for name, value in obs.items() if name != "action_mask"}, info


class Numbered1(Numbered):
    """Discrete observations and actions."""

    action_space = spaces.Discrete(3, start=2)
