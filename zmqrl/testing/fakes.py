"""An env and an algorithm for runs that are about processes: they start fast, without torch, and fail on request."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np

from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.bench.untrained import RandomActions, UntrainedLearner
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array

ENV = "zmqrl.testing.fakes:FakeEnv"
ALGORITHM = "zmqrl.testing.fakes:FakeAlgorithm"
EPISODE_STEPS = 50
FAR_S = 3600.0
FAULT_AT = 250
"""No check of the first steps before the start comes so far."""
Fault = Literal["", "hang", "die", "orphan"]


class FakeEnv(gymnasium.Env[Array, np.int64]):
    """A walk by actions and the seed; from step `at` of the process on it has the fault `fault`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, fault: Fault = "", at: int = FAULT_AT, token: str = "", step_s: float = 0.0) -> None:
        """A fake env.

        Args:
            fault: `hang`: a step never returns, and SIGTERM is not handled. `die`: SIGKILL of this process.
                `orphan`: a child process is started, which never ends.
            at: Step of the process at which it happens.
            token: In the command line of the child process, so that it is found.
            step_s: Duration of a step.
        """
        self._fault, self._at, self._token, self._step_s = fault, at, token, step_s
        self._steps = self._t = self._seed = 0
        self._x = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Episode `seed` from its beginning."""
        super().reset(seed=seed)
        self._seed, self._t, self._x = seed or 0, 0, 0.0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Walk; reward 1."""
        self._steps += 1
        if self._fault and self._steps >= self._at:
            self._fail()
        if self._step_s:
            time.sleep(self._step_s)
        self._t += 1
        self._x = 0.5 * self._x + float(action) + (self._seed % 97) / 97
        return self._obs(), 1.0, False, self._t >= EPISODE_STEPS, {}

    def _obs(self) -> Array:
        return np.array([self._x, self._t, self._seed % 1009], np.float32)

    def _fail(self) -> None:
        if self._fault == "orphan":
            subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FAR_S})", self._token])
            self._fault = ""
            return
        if self._fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A child that ends with this process shows that it hangs.
        subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", self._token], stdin=subprocess.PIPE)
        while True:
            time.sleep(FAR_S)


@dataclass(frozen=True)
class FakeConfig:
    """No keys."""


class FakeAlgorithm(RandomActions):
    """Random actions; its weights are a function of every bit of every batch, without torch."""

    Config: ClassVar[type[FakeConfig]] = FakeConfig
    on_policy: ClassVar[bool] = True

    @property
    def batch_segments(self) -> int | None:
        """async: one at a time."""
        return 1

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return _Digesting(context.weights)


class _Digesting(UntrainedLearner, OnPolicyLearner):
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        digest = hashlib.sha256()
        for name, column in sorted(batch.columns.items()):
            digest.update(name.encode() + np.ascontiguousarray(column).tobytes())
        change = np.frombuffer(digest.digest(), np.uint8).astype(np.float32) / 256
        self._weights = {name: array + np.resize(change, array.shape) for name, array in self._weights.items()}
        return LearnResult(1, {})
