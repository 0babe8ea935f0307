"""Envs that return one wrong value: an observation, a reward or a flag, from `reset` or from a step."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs.agent_envs import Walkers

BOX = spaces.Box(0, 100, (3,), np.uint8)
SPACES: dict[str, gym.Space[Any]] = {
    "uint8": BOX,
    "int8": spaces.Box(-100, 100, (3,), np.int8),
    "int32": spaces.Box(-(10**8), 10**8, (3,), np.int32),
    "uint64": spaces.Box(0, 10**8, (3,), np.uint64),
    "bool": spaces.Box(0, 1, (3,), np.bool_),
    "image": spaces.Box(0, 255, (2, 2), np.uint8),
    "float32": spaces.Box(-1, 1, (3,), np.float32),
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "discrete": spaces.Discrete(4, start=-1),
    "several": spaces.MultiDiscrete([3, 5], start=[1, 0]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float32), inner=spaces.Dict(image=BOX)),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Tuple((spaces.MultiBinary(3), BOX)))),
}


class Raising:
    """An object that cannot be read as an array, a number or a text."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the simulator is gone")


OBSERVATIONS: dict[str, Any] = {
    "float32 0.7": np.full(3, 0.7, np.float32),
    "float64 nan": np.full(3, np.nan),
    "float32 nan": np.array([0, np.nan, 1], np.float32),
    "float64 1e39": np.array([0, 1e39, 1]),
    "float64 5": np.full(3, 5.0),
    "inf": np.array([0, -np.inf, 1]),
    "float64 image": np.full((2, 2), 0.5),
    "int64 300": np.array([1, 300, 2]),
    "int64 -200": np.full(3, -200),
    "uint8 200": np.full(3, 200, np.uint8),
    "uint64 2**63": np.array([0, 2**63, 1], np.uint64),
    "int64 2**40": np.array([0, 2**40, 1]),
    "int64 -1": np.array([0, -1, 1]),
    "int64 2": np.array([0, 2, 1]),
    "int64 5": np.full(3, 5),
    "int16 5": np.full(3, 5, np.int16),
    "big-endian 5": np.full(3, 5, ">i2"),
    "list": [1, 2, 3],
    "list of floats": [0.1, 0.2, 0.3],
    "bools": np.array([True, False, True]),
    "objects": np.array([1, None, 2], object),
    "numbers as objects": np.array([1, 2, 3], object),
    "complex": np.full(3, 1 + 1j),
    "texts": np.array(["1", "2", "3"]),
    "dates": np.array(["2020-01-01"] * 3, "datetime64[D]"),
    "ragged": [[1, 2], [1], [1]],
    "raising": Raising(),
    "none": None,
    "int 5": 5,
    "int 2": 2,
    "float 1.0": 1.0,
    "float nan": np.nan,
    "several 3, 4": np.array([3, 4]),
    "several 0, 4": np.array([0, 4]),
    "several floats": np.array([1.0, 4.0]),
    "several uint64": np.array([2**64 - 1, 2], np.uint64),
}
REWARDS: dict[str, Any] = {
    "two": np.array([1.0, 2.0]),
    "list of one": [1.0],
    "tuple": (1.0,),
    "none": None,
    "complex": 1 + 0j,
    "complex64": np.complex64(1),
    "text": "1.0",
    "bytes": b"1",
    "dict": {"a": 1.0},
    "empty": np.array([]),
    "object": np.array([None]),
    "duration": np.timedelta64(1, "s"),
    "nan": np.float32(np.nan),
    "array nan": np.array([np.nan]),
    "raising": Raising(),
    "huge": 10**400,
    "float": 1.0,
    "int": 1,
    "bool": True,
    "float16": np.float16(1),
    "longdouble": np.longdouble(1),
    "zero axes": np.array(1.0),
    "one axis": np.array([1.0]),
    "two axes": np.array([[1]]),
    "fraction": Fraction(1),
}
FLAGS: dict[str, Any] = {
    "list false": [False],
    "list empty": [],
    "tuple": (True, False),
    "two": np.array([True, False]),
    "three ints": np.zeros(3, int),
    "none": None,
    "text": "False",
    "dict": {"__all__": False},
    "nan": float("nan"),
    "complex": 0j,
    "objects": np.array([None]),
    "raising": Raising(),
    "false": False,
    "np false": np.False_,
    "int 0": 0,
    "int64 0": np.int64(0),
    "float 0": 0.0,
    "array false": np.array(False),
    "one false": np.array([False]),
    "true": True,
    "np true": np.True_,
    "int 1": 1,
    "one true": np.array([[True]]),
}


class Returns(gym.Env[Any, Any]):
    """Returns the value that `obs`, `reward`, `terminated` or `truncated` names: `call` is `reset` or `step`."""

    action_space = spaces.Discrete(2)
    well: ClassVar[dict[str, Any]] = {
        "discrete": 1,
        "several": np.array([2, 1]),
        "image": np.zeros((2, 2), np.uint8),
        "dict": {"x": np.zeros(2, np.float32), "inner": {"image": np.zeros(3, np.uint8)}},
        "tuple": (np.zeros(2, np.float32), (np.zeros(3, np.int8), np.zeros(3, np.uint8))),
    }

    def __init__(self, space: str = "float32", call: str = "step", **named: str) -> None:
        self.observation_space, self._space, self._call, self._named = SPACES[space], space, call, named
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._t = 0
        return self._obs("reset"), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        reward = REWARDS[self._named.get("reward", "float")] if self._t == 2 else 1.0
        terminated, truncated = (
            FLAGS[self._named.get(name, "false")] if self._t == 2 else False for name in ("terminated", "truncated")
        )
        return self._obs("step"), reward, terminated, truncated, {}

    def _obs(self, call: str) -> Any:
        name = self._named.get("obs")
        is_bad = name is not None and call == self._call and self._t in (0, 2)
        if not is_bad:
            return self.well.get(self._space, np.zeros(3, self.observation_space.dtype))
        found = OBSERVATIONS[name]
        if self._space == "dict":
            return {**self.well["dict"], "inner": {"image": found}}
        return (np.zeros(2, np.float32), (np.zeros(3, np.int8), found)) if self._space == "tuple" else found


F32, F64 = float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)


class Acts(Returns):
    """Actions with bounds, by name; it refuses an action outside of them."""

    bounds: ClassVar[dict[str, gym.Space[Any]]] = {
        "unit": spaces.Box(-1, 1, (2,)),
        "largest": spaces.Box(-F32, F32, (2,), np.float32),
        "largest float64": spaces.Box(-F64, F64, (2,), np.float64),
        "one side": spaces.Box(np.array([-1, 0], np.float32), np.array([1, F32], np.float32)),
        "equal": spaces.Box(np.array([0, 1], np.float32), np.array([1, 1], np.float32)),
        "equal in float32": spaces.Box(np.array([-1, 1e9]), np.array([1, 1e9 + 1]), dtype=np.float64),
        "far": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 100], np.float32)),
    }

    def __init__(self, bounds: str) -> None:
        super().__init__()
        self.action_space = self.bounds[bounds]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action)


class Doubled(gym.RewardWrapper[Any, Any]):
    """A wrapper of the user whose `reward` is at fault."""

    def reward(self, reward: Any) -> Any:
        return [reward]


def doubled() -> gym.Env[Any, Any]:
    return gym.wrappers.TransformReward(Doubled(Returns()), lambda reward: reward)


class Quits(gym.Env[Any, Any]):
    """Ends its process politely in the method `where`, or raises KeyboardInterrupt there."""

    observation_space = SPACES["float32"]
    action_space = spaces.Discrete(2)

    def __init__(self, where: str, how: str = "exit") -> None:
        self._where, self._how, self._t = where, how, 0
        self._end("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._end("reset")
        self._t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        if self._t == 2:
            self._end("step")
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def get_state(self) -> Any:
        self._end("get_state")
        return np.array([self._t])

    def set_state(self, state: Any) -> None:
        self._end("set_state")
        self._t = int(state[0])

    def close(self) -> None:
        self._end("close")

    def _end(self, where: str) -> None:
        if where != self._where:
            return
        if self._how == "interrupt":
            raise KeyboardInterrupt
        if self._how == "cancelled":
            raise Cancelled
        sys.exit({"exit": 0, "text": "no licence", "none": None}[self._how])


class Cancelled(BaseException):
    """As that of asyncio."""


class AgentReturns(Walkers):
    """Several agents, of whom one is wrong in step 3: its reward, its flag, or its return after its end."""

    def __init__(self, fault: str) -> None:
        super().__init__(length=100)
        self._wrong = fault

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return {"obs list": list(obs), "obs none": None}.get(self._wrong, obs), info

    def step(self, actions: Any) -> Any:
        obs, reward, ends, cuts, infos = super().step(actions)
        if self._t == 2 and "again" in self._wrong:
            ends["right"] = True
            self.agents.remove("right")
        if self._t == 3:
            if "reward" in self._wrong:
                reward = {**reward, "right": REWARDS["two"]}
            if self._wrong == "no reward":
                del reward["right"]
            if self._wrong == "no terminated":
                del ends["right"]
            if self._wrong == "list flag":
                cuts = {**cuts, "right": [False]}
            if self._wrong == "one reward":
                reward = 1.0
            if self._wrong == "flag for all":
                ends = False
            if self._wrong == "cuts none":
                cuts = None
            if self._wrong == "dtype":
                obs["right"] = obs["right"].astype(complex)
            if self._wrong == "again":
                self.agents.append("right")
            if self._wrong == "new agent":
                self.agents.append("fourth")
            if self._wrong == "exit":
                sys.exit(3)
        return obs, reward, ends, cuts, infos
