"""Heads with actions of a box."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import BOUNDS_FIX, UNIFORM, Head, bounds
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.errors import ConfigError
from zmqrl.types import Array, Weights

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a state-dependent log-std (Haarnoja et al. 2018, reference code)."""
NOISE = "noise"


class BoxHead(Head):
    """What heads with box actions share: bounds, flat rows, the stored shape, and a warm-up with uniform actions.

    Where the spec declares `NoiseSpec("uniform", A, "uniform")`, a row's action is uniform within the bounds with
    probability `schedule["uniform"]`, e.g. 1 until learning starts and 0 from then on.
    """

    actions = frozenset({"box"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._size = math.prod(spec.action.shape)
        self._shape = (rows, *spec.action.shape)
        self._low: Array | None
        self._high: Array | None
        self._low, self._high = bounds(spec.action)
        self._uniform = 0.0
        declared = [noise for noise in spec.noise if noise.name == UNIFORM]
        self._warms_up = bool(declared)
        if declared and declared[0] != (expected := NoiseSpec(UNIFORM, self._size, "uniform")):
            what = f"uniform actions of head {spec.head!r} need another noise"
            raise ConfigError(what, value=str(declared[0]), fix=f"declare {expected}")
        if declared and not spec.action.is_bounded:
            raise ConfigError(f"head {spec.head!r}: uniform actions need an action space that is bounded on every side")
        if declared and (fault := spec.action.unscalable) is not None:
            raise ConfigError(f"head {spec.head!r} draws uniform actions: {fault}; {BOUNDS_FIX}")
        if declared and "log_prob" in self._extras:
            raise ConfigError(f"head {spec.head!r}: the extra 'log_prob' is not that of uniform actions; leave out one")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({UNIFORM} if self._warms_up else ())

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        del weights
        if self._warms_up:
            self._uniform = schedule[UNIFORM]

    def _mixed(self, actions: Array, t: int, context: ActingContext) -> Array:
        """`actions [N, *shape]`, with uniform ones in the rows that are drawn."""
        if self._uniform <= 0.0:
            return actions
        assert self._low is not None and self._high is not None, "checked before"
        drawn = context.noise.uniform[t, :, 0] < self._uniform
        uniform = self._low + context.noise.further[UNIFORM][t] * (self._high - self._low)
        actions.reshape(self.rows, self._size)[drawn] = uniform[drawn]
        return actions

    def _bounded(self, fraction: Array) -> Array:
        """Actions scaled from [-1, 1] to the action space."""
        assert self._low is not None and self._high is not None, "checked before"
        half = (self._high - self._low) * np.float32(0.5)
        actions: Array = (self._low + (fraction + np.float32(1.0)) * half).astype(np.float32)
        return actions.reshape(self._shape)


class Gaussian(BoxHead):
    """mean + exp(log_std) noise with a state-independent log-std; stored unclipped."""

    fills = frozenset({"log_prob"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._std: Array = np.ones(self._size, np.float32)
        self._constant = np.float32(0.0)

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        super().load(weights, schedule)
        log_std = weights["log_std"].reshape(-1)
        self._std = np.exp(log_std, dtype=np.float32)
        self._constant = np.float32(log_std.sum(dtype=np.float64) + 0.5 * self._size * math.log(2.0 * math.pi))

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        actions: Array = context.noise.normal[t].astype(np.float32)
        actions *= self._std
        actions += outputs
        self._mixed(actions, t, context)
        if "log_prob" in self._extras:
            # From the action as it is stored, as the learner will see it.
            z = (actions - outputs) / self._std
            np.subtract(np.float32(-0.5) * np.add.reduce(z * z, 1), self._constant, context.extras["log_prob"][t])
        return actions.reshape(self._shape)

    def act_greedily(self, outputs: Array) -> Array:
        actions = outputs.astype(np.float32)
        if self._low is not None:
            np.clip(actions, self._low, self._high, actions)
        return actions.reshape(self._shape)


class SquashedGaussian(BoxHead):
    """tanh of a Gaussian, scaled to the bounds; outputs are `[mean, log_std]`, or the mean with an array `log_std`."""

    needs_bounds = True

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._log_std: Array | None = None

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        super().load(weights, schedule)
        if "log_std" in self.spec.arrays:
            self._log_std = weights["log_std"].reshape(-1).astype(np.float32)

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        log_std = outputs[:, self._size :] if self._log_std is None else self._log_std
        std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
        noise = std * context.noise.normal[t].astype(np.float32)
        return self._mixed(self._bounded(np.tanh(outputs[:, : self._size] + noise)), t, context)

    def act_greedily(self, outputs: Array) -> Array:
        return self._bounded(np.tanh(outputs[:, : self._size]))


class DeterministicNoise(BoxHead):
    """The network's action in [-1, 1] plus `schedule["noise"]` times a normal, clipped and scaled to the bounds."""

    needs_bounds = True

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._noise = np.float32(0.0)

    @property
    def reads(self) -> frozenset[str]:
        return super().reads | {NOISE}

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        super().load(weights, schedule)
        self._noise = np.float32(schedule[NOISE])

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        noise = self._noise * context.noise.normal[t].astype(np.float32)
        return self._mixed(self._bounded(np.clip(outputs + noise, -1.0, 1.0)), t, context)

    def act_greedily(self, outputs: Array) -> Array:
        return self._bounded(np.clip(outputs, -1.0, 1.0))
