"""The algorithm seam. One algorithm code serves single, sync and async.

`Algorithm` is plain and torch-free: the launcher uses it to check the configuration and to define how workers act.
`OnPolicyLearner` and `OffPolicyLearner` hold the tensors; only the learner process imports them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zmqrl.acting.spec import ActingSpec, NetworkSpec
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.networks.input import InputSpec, network_input
from zmqrl.replay.base import Replay, SegmentBatch
from zmqrl.types import LARGEST_FINITE, LONGEST_NAME, Array, EnvSpec, ModeName, Version, Weights


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

    @property
    def fraction(self) -> float:
        """Share of the schedules' horizon that is done, in [0, 1]."""
        return min(1.0, self.env_steps / self.schedule_env_steps)


@dataclass(frozen=True)
class LearnResult:
    """What one round of learning did."""

    updates: int
    """Optimiser steps (minibatches)."""
    metrics: Mapping[str, float]


class Algorithm(ABC):
    """Created by the launcher and by the learner from the same configuration; no method blocks.

    A concrete class names itself by its module: `kind: ppo` is the one `Algorithm` in `zmqrl.algorithms.ppo`,
    `kind: my_lab.algos:Mine` is attribute Mine of module my_lab.algos.
    """

    Config: ClassVar[type[Any]]
    """Frozen dataclass of the fields other than `kind`."""
    modes: ClassVar[frozenset[ModeName]]
    on_policy: ClassVar[bool]

    def __init__(self, config: Any, network: NetworkSection, env: EnvSpec, segment_steps: int, num_envs: int) -> None:
        """Raise `ConfigError` naming key and value when these do not go together."""
        self.config = config
        self.network_section = network
        self.env = env
        self.segment_steps = segment_steps
        self.num_envs = num_envs

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` naming key and value when the rest of the run does not fit. The launcher calls it."""
        del mode, vector_envs, replay

    @property
    def input(self) -> InputSpec:
        """What the network sees of an observation, for `ActingSpec.input` and the learner's `TorchInput`."""
        return network_input(self.env.observation, self.network_section)

    @abstractmethod
    def network(self) -> NetworkSpec:
        """The network as plain data; version 0 is initialised from it in numpy."""

    @abstractmethod
    def acting(self) -> ActingSpec:
        """How workers act, and the extra columns of a segment."""

    def statistics(self) -> Weights:
        """Further arrays that are published alongside the network's from version 0 on, such as `obs_mean`."""
        return {}

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """Values that workers need with a version, such as `epsilon`: finite numbers by name. See `schedule_of`."""
        del progress
        return {}

    def learning_rate(self, progress: Progress) -> float | None:
        """The optimiser's step size at this point of the run; None: it never becomes 0."""
        del progress
        return None

    @property
    def n_step(self) -> int:
        """Length of n-step targets: sync needs a T of at least four of them."""
        return 1

    @property
    def batch_segments(self) -> int | None:
        """async, on-policy: segments of one training batch; None for off-policy."""
        return None

    @property
    def prioritised(self) -> Mapping[str, float] | None:
        """Settings of prioritised replay (`alpha`, `epsilon`), or None for uniform."""
        return None

    @abstractmethod
    def learner(self, weights: Weights, device: str) -> OnPolicyLearner | OffPolicyLearner:
        """Import torch and build the learner, starting from `weights` (network and statistics)."""


def schedule_of(algorithm: Algorithm, progress: Progress) -> dict[str, float]:
    """What `algorithm.schedule` gives, as messages carry it: numbers of numpy and torch are plain floats.

    Raises:
        ConfigError: A receiver would refuse it: a value is not a finite number, or a name is too long or is not a text.
    """
    given = algorithm.schedule(progress)
    return {_checked_name(algorithm, name): _checked_value(algorithm, name, value) for name, value in given.items()}


def _checked_name(algorithm: Algorithm, name: Any) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_NAME:
        return name
    raise ConfigError(
        f"{type(algorithm).__qualname__}.schedule: {name!r:.80}: "
        f"a name must be text of at most {LONGEST_NAME} characters"
    )


def _checked_value(algorithm: Algorithm, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if abs(number) <= LARGEST_FINITE:  # no comparison with NaN holds
        return number
    raise ConfigError(f"{type(algorithm).__qualname__}.schedule: {name}: {value!r:.80}: must be a finite number")


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
    """Learns from whole segments, once."""

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
