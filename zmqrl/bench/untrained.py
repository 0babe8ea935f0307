"""Random actions, and a learner without gradients and torch: for runs that are about the system."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, BaseLearner, Progress
from zmqrl.loading import np
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.types import MODES, Array, ModeName, Weights


class RandomActions(Algorithm, ABC):
    """Every action is drawn."""

    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)

    def network(self) -> NetworkSpec:
        layers = tower("q", self.network_section, self.env.observation, self.env.action.n, output_gain=1.0)
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        return ActingSpec(self.network().tower("q"), "epsilon_greedy", self.env.action, self.env.observation)

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        return {"epsilon": 1.0}


class UntrainedLearner(BaseLearner):
    """Publishes the weights that it was given, unless a subclass replaces arrays of `_weights`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = {name: np.array(array) for name, array in sorted(weights.items())}

    def weights(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._weights.items()}

    def network_names(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, weights: Weights, state: Weights) -> None:
        self._weights = {name: np.array(weights[name]) for name in self._weights}
