"""Algorithms that learn nothing and write down every row that they are given. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zmqrl.algorithms.base import (
    LearnerContext,
    LearnResult,
    OffPolicyLearner,
    OnPolicyLearner,
    Progress,
)
from zmqrl.bench.untrained import RandomActions, UntrainedLearner
from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.drill.journal import Journal
from zmqrl.drill.planted import DEFECTS, Spoiler
from zmqrl.drill.witness import rows_of
from zmqrl.replay.base import Replay, SegmentBatch
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import Weights

SUFFIX = "rows"


@dataclass(frozen=True)
class WitnessConfig:
    """The fields other than `kind`."""

    __pydantic_config__ = FORBID_UNKNOWN

    record: str
    """Folder of the journals."""
    prioritised: bool = False
    """Whether replay is the prioritised one."""
    plant: str | None = None
    """The defect (`planted.DEFECTS`) in what the learner records."""


class _Witness(RandomActions):
    Config: ClassVar[type[WitnessConfig]] = WitnessConfig
    config: WitnessConfig


class WitnessOnPolicy(_Witness):
    """Given each segment once, as PPO would be."""

    on_policy: ClassVar[bool] = True

    @property
    def batch_segments(self) -> int | None:
        """async: one at a time."""
        return 1

    def learner(self, context: LearnerContext) -> OnPolicyLearner:
        return _OnPolicyRecorder(context.weights, self.config)


class WitnessOffPolicy(_Witness):
    """Given segments as they enter replay, as DQN would be."""

    on_policy: ClassVar[bool] = False

    def replay(self) -> ReplaySpec:
        return ReplaySpec(prioritised=Prioritised() if self.config.prioritised else None)

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return _OffPolicyRecorder(context.weights, self.config)


class _Recorder(UntrainedLearner):
    def __init__(self, weights: Weights, config: WitnessConfig) -> None:
        super().__init__(weights)
        self._journal = Journal(Path(config.record), SUFFIX)
        self._spoiler = None if config.plant is None else Spoiler(DEFECTS[config.plant])

    def _record(self, batch: SegmentBatch) -> None:
        columns = batch.columns if self._spoiler is None else self._spoiler.spoiled(batch)
        self._journal.append(rows_of(columns, batch.metas).tobytes())


class _OnPolicyRecorder(_Recorder, OnPolicyLearner):
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        self._record(batch)
        return LearnResult(1, {})


class _OffPolicyRecorder(_Recorder, OffPolicyLearner):
    def observe(self, batch: SegmentBatch) -> None:
        self._record(batch)

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        return LearnResult(updates, {})
