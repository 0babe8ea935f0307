"""A tally with a recurrent core: its weights depend on every bit of what was acted, and of the state in use.

The core sees the previous action and reward too, and the head completes segments.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

import numpy as np

from tests.stand_ins.tally import STEP, Tally, TallyConfig, TallyLearner
from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import Categorical
from zmqrl.acting.spec import ActingSpec, ActingState, previous_size
from zmqrl.algorithms.base import LearnerContext, LearnResult, OnPolicyLearner, Progress
from zmqrl.config.codec import replace
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, ColumnSpec

SIZE = 8
STATES = tuple(f"{kind}.{name}" for kind in ("state", "state_end") for name in ("core", "previous"))
COLUMNS = ("obs", "action", "log_prob", "reward", "valid", "outputs", *STATES)


class Completing(Categorical):
    """Fills a column after the last row."""

    fills = Categorical.fills | {"outputs"}

    def complete(self, outputs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:
        context.extras["outputs"][...] = outputs[1:] + columns["reward"][..., None]


class RecurrentTally(Tally):
    """The core sees the observation and the step before, the head the core."""

    def network(self) -> NetworkSpec:
        inputs = self.env.observation.shape[0] + previous_size(self.env.action)
        core = (
            ("core.weight_ih", (3 * SIZE, inputs), 0.5),
            ("core.weight_hh", (3 * SIZE, SIZE), -0.1),
            ("core.bias_ih", (3 * SIZE,), 0.0),
            ("core.bias_hh", (3 * SIZE,), 0.0),
        )
        return NetworkSpec((("actor", (LayerSpec("linear", "out", SIZE, self.env.action.n),)),), core)

    def acting(self) -> ActingSpec:
        spec, inputs = super().acting(), self.env.observation.shape[0]
        seen = inputs + previous_size(self.env.action)
        joined, core = LayerSpec("concat", inputs=inputs, outputs=seen), LayerSpec("gru", "core", seen, SIZE)
        return replace(
            spec,
            layers=(joined, core, *self.network().tower("actor")),
            head=f"{__name__}:Completing",
            extras=(
                *spec.extras,
                ColumnSpec("outputs", "float32", (self.segment_steps, self.num_envs, self.env.action.n)),
            ),
            state=(ActingState("core", SIZE),),
            state_every=8,
            previous=True,
        )

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
