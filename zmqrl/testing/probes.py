"""Small envs, each of which is learned only if one part of an algorithm is right."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from zmqrl.types import Array

SYMBOLS: Array = np.eye(3, dtype=np.float32)
STEPS = 8
"""Steps of an episode of `Identity` and `MaskedBandit`."""


class ProbeEnv(gymnasium.Env[Any, Any]):
    """`RANDOM` and `BEST` are mean returns per episode: of a policy that has learned nothing, and of the best."""

    RANDOM: ClassVar[float]
    BEST: ClassVar[float]
    about: ClassVar[str]
    """What is learned in it."""
    kinds_of_action: ClassVar[tuple[bool, ...]] = (False, True)
    """Whether continuous."""
    observation_space: gymnasium.Space[Any] = Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, continuous: bool = False, actions: int = 2) -> None:
        self._continuous = continuous
        self.action_space: gymnasium.Space[Any] = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(actions)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next one."""
        choice = int(float(np.ravel(action)[0]) > 0.0) if self._continuous else int(action)
        self._t += 1
        reward, terminated, truncated = self._result(choice, action)
        return self._observe(), reward, terminated, truncated, {}

    def _observe(self) -> Any:
        raise NotImplementedError

    def _result(self, choice: int, action: Any) -> tuple[float, bool, bool]:
        """Reward, and whether the episode has terminated or is truncated. `choice`: also for a continuous action."""
        raise NotImplementedError


class Identity(ProbeEnv):
    """The observation is one of three symbols; naming it is worth 1. Continuous: -0.5, 0 or 0.5, within 0.25."""

    RANDOM, BEST = STEPS / 3, float(STEPS)
    about = "what is observed decides the action"

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous, actions=3)
        self._symbol = 0

    def _observe(self) -> Any:
        self._symbol = int(self.np_random.integers(3))
        return SYMBOLS[self._symbol].copy()

    def _result(self, choice: int, action: Any) -> tuple[float, bool, bool]:
        error = 2.0 * abs(float(np.ravel(action)[0]) - 0.5 * (self._symbol - 1)) if self._continuous else 0.0
        reward = max(0.0, 1.0 - error) if self._continuous else float(choice == self._symbol)
        return reward, self._t == STEPS, False


class InfiniteHorizon(ProbeEnv):
    """Staying is worth 1 and each step of it is cut off by a limit; leaving is worth 2 and terminates.

    With bootstrapping at the limit staying is worth 1 / (1 - gamma); a limit that is taken for an end makes it 1.
    """

    RANDOM, BEST = 1.5, 1.0
    about = "a truncated episode has a value after its end, a terminated one has none"

    def _observe(self) -> Any:
        return SYMBOLS[0].copy()

    def _result(self, choice: int, action: Any) -> tuple[float, bool, bool]:
        return (2.0, True, False) if choice else (1.0, False, True)


class Memory(ProbeEnv):
    """The first observation is one of two symbols, the next two are blank: naming it at the end is worth 1."""

    RANDOM, BEST = 0.5, 1.0
    about = "an observation decides an action two steps later"

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous)
        self._symbol = 0

    def _observe(self) -> Any:
        if self._t == 0:
            self._symbol = int(self.np_random.integers(2))
            return SYMBOLS[self._symbol].copy()
        return SYMBOLS[2] * float(self._t == 2)

    def _result(self, choice: int, action: Any) -> tuple[float, bool, bool]:
        return float(self._t == 3 and choice == self._symbol), self._t == 3, False


class MaskedBandit(ProbeEnv):
    """Four actions with fixed rewards, two of which are allowed. A forbidden one is an error."""

    REWARDS = (0.0, 0.3, 0.6, 1.0)
    RANDOM = STEPS * sum(REWARDS) / 4
    BEST = STEPS * (3 * REWARDS[3] + 2 * REWARDS[2] + REWARDS[1]) / 6
    about = "the best of the actions that the mask allows"
    kinds_of_action = (False,)
    observation_space = Dict({"action_mask": Box(0, 1, (4,), np.int8), "symbol": Box(0.0, 1.0, (3,), np.float32)})

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous, actions=4)
        self._mask = np.ones(4, np.int8)

    def _observe(self) -> dict[str, Array]:
        self._mask = np.zeros(4, np.int8)
        self._mask[self.np_random.choice(4, 2, replace=False)] = 1
        return {"action_mask": self._mask.copy(), "symbol": SYMBOLS[0].copy()}

    def _result(self, choice: int, action: Any) -> tuple[float, bool, bool]:
        if not self._mask[choice]:
            raise ValueError(f"action {choice} is forbidden by the mask {self._mask.tolist()}")
        return self.REWARDS[choice], self._t == STEPS, False


PROBES: tuple[type[ProbeEnv], ...] = (Identity, InfiniteHorizon, Memory, MaskedBandit)
