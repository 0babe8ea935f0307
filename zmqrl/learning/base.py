"""What a learner is: the tensors of an algorithm, and how they are trained. No torch here."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from zmqrl.config.sections import ReplaySection
from zmqrl.errors import TrainingFailed
from zmqrl.replay.base import Replay, SegmentBatch
from zmqrl.types import Array, Version, Weights

LOG = logging.getLogger(__name__)
Report: TypeAlias = Callable[[str, str], object]
"""Receives what failed without an end of the training, and what is done about it."""


def log_report(cause: str, done: str) -> None:
    """The `Report` of a learner outside of a run."""
    LOG.warning("%s: %s", cause, done)


def check_norm(name: str, norm: float, update: int) -> None:
    """TrainingFailed: the norm of a gradient is not finite, and makes all later ones so.

    `update`: updates that the parameters had before, since the start of the run.
    """
    if math.isfinite(norm):
        return
    fix = "lower algorithm.learning_rate"
    if update == 0:
        causes = "a logarithm or a root of 0, a division by 0, very large rewards or observations"
        fix = f"no learning rate has been applied before, so that the loss itself is the cause: look for {causes}"
    raise TrainingFailed(f"{name} is {norm} in update {update}: {fix} (docs/debugging.md)")


@dataclass(frozen=True)
class Progress:
    """Progress of a run, for schedules and random streams."""

    seed: int
    env_steps: int
    updates: int
    schedule_env_steps: int
    debug: bool = False
    version: Version | None = None
    """The version that this round improves on; its result is published as n + 1. None: unknown."""
    by_updates: bool = False
    """Mode offline: schedules change with updates."""

    @property
    def fraction(self) -> float:
        """Share of the schedules' horizon that is done, in [0, 1]."""
        return min(1.0, self.done / self.schedule_env_steps)

    @property
    def done(self) -> int:
        """Env steps, in mode offline updates."""
        return self.updates if self.by_updates else self.env_steps


@dataclass(frozen=True)
class LearnerContext:
    """What a learner is built from."""

    weights: Weights
    """Every tensor of the network, the learner-only ones too, and the statistics: published ones, and of other weights
    those of `Algorithm.learner_statistics`."""
    device: str = "cpu"
    seed: int = 0
    schedule_env_steps: int = 1
    """Horizon of the schedules."""
    replay: ReplaySection | None = None
    """None: on-policy."""
    executor: str = "eager"
    """How updates are run."""
    precision: str = "float32"
    """Numbers that the hidden layers are computed with."""
    report: Report = log_report
    """Function that takes messages; in a run they are shown to the user."""


@dataclass(frozen=True)
class LearnResult:
    """What one round of learning did."""

    updates: int
    """Optimiser steps (minibatches)."""
    metrics: Mapping[str, float]


class BaseLearner(ABC):
    """The process with the gradient calls these from one thread. Nothing here blocks on others."""

    @abstractmethod
    def weights(self) -> dict[str, Array]:
        """Copies of the network's tensors and the statistics, float32 and float64 numpy, C-contiguous."""

    @abstractmethod
    def network_names(self) -> tuple[str, ...]:
        """Which of `weights()` are the network's tensors (the run's sha256 is over these)."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """State in a full checkpoint in addition to `weights()`: optimiser, target network, statistics, counters."""

    @abstractmethod
    def load_state(self, weights: Weights, state: Weights) -> None:
        """Restore what `weights()` and `state()` gave, bit for bit."""


class OnPolicyLearner(BaseLearner):
    """Learns from whole segments, each in one batch; with `Algorithm.held_batches` also again from those it holds."""

    replay: Replay | None = None
    """What is held, the batch of `learn` included. The loop sets it before the first batch."""

    @abstractmethod
    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """Train on `batch`; `progress` counts its rows already."""


class OffPolicyLearner(BaseLearner):
    """Learns from replay."""

    @abstractmethod
    def observe(self, batch: SegmentBatch) -> None:
        """See raw segments as they enter replay, in batch order (for statistics)."""

    @abstractmethod
    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        """Do `updates` optimiser steps; `progress.updates` counts those done before."""
