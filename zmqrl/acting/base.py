"""The seam between a rollout worker and whatever computes its actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zmqrl.types import Array, Weights


@dataclass(frozen=True)
class ActingNoise:
    """All random numbers of one segment, drawn before its first step.

    `uniform [T, N, max(2, k)]` float64 in [0, 1) (k = entries of a multi_discrete action), `normal [T, N, A]` float64
    (A = flat action size; 0 for discrete).
    """

    uniform: Array
    normal: Array


class Policy(ABC):
    """Acts for one vector env's batch. Called by one thread of a rollout worker or evaluator; never blocks."""

    @abstractmethod
    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        """Take new weights (the arrays are the policy's to keep) between two segments."""

    @abstractmethod
    def act(self, obs: Array, noise: ActingNoise, t: int, extras: Mapping[str, Array]) -> Array:
        """Actions for `obs [N, ...]` at row `t` of the segment.

        Writes `extras[name][t]` for every extra of the spec. The action returned, `[N]` or `[N, k]`
        int64 or `[N, A...]` float32, is what is stored (unclipped); the env is given a clipped copy by the caller.
        """

    @abstractmethod
    def act_greedily(self, obs: Array) -> Array:
        """The best-known actions for `obs [N, ...]`: argmax, or the mean clipped to the action space."""


def noise_for(generator: np.random.Generator, steps: int, envs: int, action_size: int, entries: int = 1) -> ActingNoise:
    """Draw a segment's noise in one fixed order; `entries` are those of a discrete or multi_discrete action."""
    return ActingNoise(
        uniform=generator.random((steps, envs, max(2, entries))),
        normal=generator.standard_normal((steps, envs, action_size)),
    )
