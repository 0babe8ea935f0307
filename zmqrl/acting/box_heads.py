"""Heads with actions of a box."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zmqrl.acting.base import ActingContext
from zmqrl.acting.heads import BOUNDS_FIX, UNIFORM, Head, bounds
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.errors import ConfigError
from zmqrl.loading import np
from zmqrl.types import Array, Weights

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a state-dependent log-std (Haarnoja et al. 2018, reference code)."""
HALF_LOG_TWO_PI, LOG_TWO = 0.5 * math.log(2.0 * math.pi), math.log(2.0)
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


class NormalHead(BoxHead):
    """Heads that draw from a normal distribution: outputs are `[mean, log_std]`, or the mean with an array `log_std`.

    A log-std of the outputs is between `LOG_STD_MIN` and `LOG_STD_MAX`; one outside is clipped.
    """

    fills = frozenset({"log_prob"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        """ConfigError when the last layer has another number of outputs."""
        super().__init__(spec, rows)
        self._has_array = "log_std" in spec.arrays
        needed, found = (1 if self._has_array else 2) * self._size, spec.layers[-1].outputs if spec.layers else 0
        if found not in (0, needed):
            parts = "means, with the array log_std" if self._has_array else "means and log-stds"
            what = f"head {spec.head!r} reads {needed} outputs ({parts}), and the last layer has {found}"
            raise ConfigError(what, fix="log-stds are outputs, or a free parameter with arrays=('log_std',)")

    def _mean_and_log_std(self, outputs: Array) -> tuple[Array, Array]:
        """Means and log-stds as the halves of `outputs`, for a head without the array `log_std`."""
        return outputs[:, : self._size], np.clip(outputs[:, self._size :], LOG_STD_MIN, LOG_STD_MAX)


class Gaussian(NormalHead):
    """mean + deviation * noise; stored unclipped. The greedy action is the mean, clipped to the bounds."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._std: Array = np.ones(self._size, np.float32)
        self._constant: Array = np.zeros((), np.float32)

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        super().load(weights, schedule)
        if self._has_array:
            self._std, self._constant = self._spread(weights["log_std"].reshape(-1))

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        mean, std, constant = outputs, self._std, self._constant
        if not self._has_array:
            mean, log_std = self._mean_and_log_std(outputs)
            std, constant = self._spread(log_std)
        actions: Array = context.noise.normal[t].astype(np.float32)
        actions *= std
        actions += mean
        self._mixed(actions, t, context)
        if "log_prob" in self._extras:
            # From the action as it is stored, as the learner will see it.
            z = (actions - mean) / std
            np.subtract(np.float32(-0.5) * np.add.reduce(z * z, 1), constant, context.extras["log_prob"][t])
        return actions.reshape(self._shape)

    def act_greedily(self, outputs: Array) -> Array:
        actions = outputs[:, : self._size].astype(np.float32)
        if self._low is not None:
            np.clip(actions, self._low, self._high, actions)
        return actions.reshape(self._shape)

    def _spread(self, log_std: Array) -> tuple[Array, Array]:
        """Deviation, and what the log-density has of it alone, for `log_std [A]` or `[N, A]`."""
        total: Array = log_std.sum(-1, dtype=np.float64) + self._size * HALF_LOG_TWO_PI
        return np.exp(log_std, dtype=np.float32), total.astype(np.float32)


class SquashedGaussian(NormalHead):
    """tanh of a Gaussian, scaled to the bounds. `log_prob` is the log-density of the action before it is scaled.

    It is that of `zmqrl.ops.policies.tanh_gaussian`, of actions in (-1, 1). In the units of the env it is less by the
    sum of log((high - low) / 2), which no ratio of probabilities depends on.
    """

    needs_bounds = True

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._log_std: Array = np.zeros(self._size, np.float32)

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        super().load(weights, schedule)
        if self._has_array:
            self._log_std = weights["log_std"].reshape(-1).astype(np.float32).clip(LOG_STD_MIN, LOG_STD_MAX)

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        mean, log_std = (outputs, self._log_std) if self._has_array else self._mean_and_log_std(outputs)
        noise = context.noise.normal[t].astype(np.float32)
        before = mean + np.exp(log_std) * noise
        if "log_prob" in self._extras:
            # log(1 - tanh(u)^2), in a form that does not lose its digits where tanh is near 1.
            squash = np.float32(2.0) * (
                np.float32(LOG_TWO) - before - np.logaddexp(np.float32(0.0), np.float32(-2.0) * before)
            )
            density = np.float32(-0.5) * noise * noise - log_std - np.float32(HALF_LOG_TWO_PI)
            np.add.reduce(density - squash, 1, out=context.extras["log_prob"][t])
        return self._mixed(self._bounded(np.tanh(before)), t, context)

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
