"""A tally with a recurrent core: its weights depend on every bit of what was acted, and of the state in use."""

from __future__ import annotations

import hashlib
import time

import numpy as np

from tests.stand_ins.tally import STEP, Tally, TallyConfig, TallyLearner
from zmqrl.acting.spec import ActingSpec, ActingState
from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.config.codec import replace
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.base import SegmentBatch

SIZE = 8
COLUMNS = ("obs", "action", "log_prob", "valid", "state.core", "state_end.core")


class RecurrentTally(Tally):
    """The core sees the observation, the head the core."""

    def network(self) -> NetworkSpec:
        inputs = self.env.observation.shape[0]
        core = (
            ("core.weight_ih", (3 * SIZE, inputs), 0.5),
            ("core.weight_hh", (3 * SIZE, SIZE), -0.1),
            ("core.bias_ih", (3 * SIZE,), 0.0),
            ("core.bias_hh", (3 * SIZE,), 0.0),
        )
        return NetworkSpec((("actor", (LayerSpec("linear", "out", SIZE, self.env.action.n),)),), core)

    def acting(self) -> ActingSpec:
        layers = (LayerSpec("gru", "core", self.env.observation.shape[0], SIZE), *self.network().tower("actor"))
        return replace(super().acting(), layers=layers, state=(ActingState("core", SIZE),), state_every=8)

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        assert isinstance(self.config, TallyConfig)
        return _Learner(context.weights, self.config.round_s)


class _Learner(TallyLearner):
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        del progress
        time.sleep(self.round_s)
        digest = hashlib.sha256(b"".join(batch.columns[name].tobytes() for name in COLUMNS)).digest()
        change = np.frombuffer(digest, np.uint8).astype(np.float32) / 255 - 0.5
        self.arrays = {name: array + STEP * np.resize(change, array.shape) for name, array in self.arrays.items()}
        held = float(np.abs(batch.columns["state.core"]).mean())
        return LearnResult(1, {"state_size": held})
