"""BitFlip of HER (Andrychowicz et al. 2017, section 3.1), and an algorithm without torch that draws its other goals."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

from tests.stand_ins.sequence_tally import SequenceTally
from tests.stand_ins.sequence_tally import _Learner as SequenceLearner
from tests.stand_ins.tally import changed
from zmqrl.algorithms.base import LearnerContext, LearnResult, OffPolicyLearner, Progress
from zmqrl.replay.base import Replay
from zmqrl.replay.spec import Relabel, ReplaySpec
from zmqrl.types import Array

BITS, COUNT, GAMMA = 5, 16, 0.9


class BitFlip(gym.Env[Any, Any]):
    """An action flips one of the bits, which are to become those of the goal."""

    action_space = gym.spaces.Discrete(BITS)
    observation_space = gym.spaces.Dict(
        {
            name: gym.spaces.Box(0.0, 1.0, (BITS,), np.float32)
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, BITS)).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._bits[action] = 1.0 - self._bits[action]
        is_there = bool(reached(self._bits[None], self._goal[None])[0])
        return self._obs(), is_there - 1.0, is_there, False, {}

    def _obs(self) -> dict[str, Any]:
        bits = self._bits.copy()
        return {"observation": bits, "achieved_goal": bits.copy(), "desired_goal": self._goal.copy()}


def reward(achieved: Array, desired: Array) -> Array:
    return reached(achieved, desired).astype(np.float32) - 1.0


def reached(achieved: Array, desired: Array) -> Array:
    found: Array = (achieved == desired).all(-1)
    return found


class HindsightTally(SequenceTally):
    """Its weights depend on every transition that it draws."""

    def replay(self) -> ReplaySpec:
        names = (f"tests.stand_ins.bit_flip:{function.__name__}" for function in (reward, reached))
        return ReplaySpec(n_step=2, relabel=Relabel(next(names), terminated=next(names)))

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return _Learner(context.weights, self.config.round_s)


class _Learner(SequenceLearner):
    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        time.sleep(self._round_s)
        for number in range(progress.updates, progress.updates + updates):
            sample = replay.sample(COUNT, 2, GAMMA, number)
            self._weights = changed(self._weights, sample.columns.values())
        return LearnResult(updates, {})
