"""An env and an algorithm that do nothing: what is left of a run is the system itself."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO
from zmqrl.bench.untrained import UntrainedLearner
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array


class NoopEnv(gymnasium.Env[Array, np.int64]):
    """Observations of zeros, no reward, no end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The only observation there is."""
        super().reset(seed=seed)
        return self._obs, {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """The same again."""
        return self._obs, 0.0, False, False, {}


class NoUpdate(PPO):
    """PPO's network and acting, and a learner that publishes what it was given."""

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return _NoUpdateLearner(context.weights)


class _NoUpdateLearner(UntrainedLearner, OnPolicyLearner):
    def state(self) -> dict[str, Array]:
        """Two flat moments, as the optimiser of the real algorithms leaves them: FULL is as large as theirs."""
        flat = np.concatenate([array.ravel() for array in self._weights.values()])
        return {"first_moment": flat, "second_moment": flat}

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        return LearnResult(0, {})
