"""An algorithm without torch whose weights depend on every row of the sequences that it draws, and on their priorities.

`first` takes the first priority from the column that the head fills.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, LearnResult, OffPolicyLearner, Progress
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.returns import sequence_priorities
from zmqrl.replay.base import Replay, SegmentBatch, SequenceSample
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import MODES, Array, ModeName, Weights

STEP, COUNT, BETA = 1e-2, 8, 0.5


@dataclass(frozen=True)
class SequenceConfig:
    __pydantic_config__ = FORBID_UNKNOWN

    length: int = 4
    first: bool = True
    round_s: float = 0.0
    """Duration of a round of learning: time for a fault to happen in."""


class SequenceTally(Algorithm):
    Config: ClassVar[type[SequenceConfig]] = SequenceConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    config: SequenceConfig

    def network(self) -> NetworkSpec:
        layers = tower("q", self.network_section, self.env.observation, self.env.action.n, output_gain=1.0)
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        extras = (self.extra("log_prob"),)
        q = self.network().tower("q")
        return ActingSpec(q, "categorical", self.env.action, self.env.observation, extras)

    def replay(self) -> ReplaySpec:
        first = "log_prob" if self.config.first else None
        return ReplaySpec(
            length=self.config.length, burn_in=2, stride=2, prioritised=Prioritised(), first_priority=first
        )

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return _Learner(context.weights, self.config.round_s)


class _Learner(OffPolicyLearner):
    def __init__(self, weights: Weights, round_s: float) -> None:
        self._round_s = round_s
        self._weights = {name: np.array(array) for name, array in sorted(weights.items())}

    def weights(self) -> dict[str, Array]:
        return dict(self._weights)

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, weights: Weights, state: Weights) -> None:
        del state
        self._weights = {name: np.array(weights[name]) for name in self._weights}

    def observe(self, batch: SegmentBatch) -> None:
        del batch

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        replay.anneal(BETA)
        time.sleep(self._round_s)
        for number in range(progress.updates, progress.updates + updates):
            sample = replay.sample_sequences(COUNT, number)
            rows = np.concatenate([np.ravel(array).astype(np.float64) for array in _arrays(sample)])
            for index, (name, array) in enumerate(self._weights.items()):
                change = np.sin(float(rows @ np.cos(np.arange(rows.size) + index)))
                self._weights[name] = (array + STEP * change).astype(array.dtype)
            replay.set_priorities(sample, sequence_priorities(np.sin(sample.reward + number), sample.mask))
        return LearnResult(updates, {})


def _arrays(sample: SequenceSample) -> Iterator[Array]:
    yield sample.obs
    yield from (sample.action, sample.reward, sample.terminated, sample.truncated, sample.valid, sample.mask)
    yield from (sample.reset, sample.weight, sample.rows, sample.extras["log_prob"])
