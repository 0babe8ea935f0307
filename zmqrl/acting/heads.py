"""Heads: from a network's outputs `[N, K]` to actions. One small class each; an own one is a dotted path `a.b:Head`."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import numpy as np

from zmqrl.acting.base import ActingContext, Place
from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.errors import ConfigError
from zmqrl.spaces import SpaceKind, nth_allowed, ranges
from zmqrl.types import Array, SpaceSpec, Weights

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a state-dependent log-std (Haarnoja et al. 2018, reference code)."""
BOUNDS_FIX = "correct the bounds, or change the action space by a wrapper in env.wrappers"
FORBIDDEN = np.float32(-1e30)
"""The logit of an action that a mask forbids: its probability is exactly 0, and sums stay finite."""
EPSILON, NOISE = "epsilon", "noise"
UNIFORM = "uniform"
"""Name of the noise, and of the value of the schedule, of a warm-up with uniform actions."""


class Head(ABC):
    """Made once per batch size; called by one thread; never blocks.

    One head serves all vector envs of a worker in turn: what it keeps from step to step is state of the spec
    (`ActingSpec.state`), in `context.state`, and never an attribute.
    """

    fills: frozenset[str] = frozenset()
    """Names of the extras that this head can fill."""
    takes: frozenset[str] = frozenset()
    """Names of the options that this head reads from `spec.options`."""
    actions: frozenset[SpaceKind] = frozenset({"discrete", "multi_discrete", "box"})
    """Kinds of action spaces that it acts in."""
    needs_bounds: bool = False
    """Whether the action space must be bounded on every side."""
    masks: bool = False
    """Whether `act` and `act_greedily` take allowed actions alone."""
    allowed: Array | None = None
    """Which actions are allowed now, bool `[N, n]`; None: all of them."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        """ConfigError when the spec has actions, an extra or an option that this head does not know."""
        self.spec = spec
        self.rows = rows
        self._extras = frozenset(column.name for column in spec.extras)
        if unknown := self._extras - self.fills:
            raise ConfigError(f"head {spec.head!r} cannot fill extras {sorted(unknown)}, only {sorted(self.fills)}")
        if unknown := frozenset(spec.options) - self.takes:
            raise ConfigError(f"head {spec.head!r} has no options {sorted(unknown)}, only {sorted(self.takes)}")
        if spec.action.kind not in self.actions:
            fitting = [name for name, head in HEADS.items() if spec.action.kind in head.actions]
            raise ConfigError(f"head {spec.head!r} has no {spec.action.kind} actions; {', '.join(fitting)} have")
        if self.needs_bounds and not spec.action.is_bounded:
            raise ConfigError(f"head {spec.head!r} needs an action space that is bounded on every side")
        if self.needs_bounds and (fault := spec.action.unscalable) is not None:
            raise ConfigError(f"head {spec.head!r} scales actions to their bounds: {fault}; {BOUNDS_FIX}")
        if spec.observation.action_mask is not None and not self.masks:
            raise ConfigError(f"head {spec.head!r} does not apply the action_mask of the observations")

    def mask(self, mask: Array | None) -> None:
        """The part `action_mask [N, n]` of the observations that the next call acts on; nonzero is allowed.

        A row that allows nothing is that of an episode which has ended: its action is ignored, and may be any.
        """
        self.allowed = None if mask is None else mask != 0

    def _masked(self, outputs: Array) -> Array:
        """`outputs [N, n]` with `FORBIDDEN` where an action is not allowed."""
        return outputs if self.allowed is None else np.where(self.allowed, outputs, FORBIDDEN)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the values of the schedule that `load` needs."""
        return frozenset()

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:  # noqa: B027 - some need nothing
        """Take what the head needs of a version."""

    @abstractmethod
    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        """Actions for `outputs [N, K]`, exploring; writes `context.extras[name][t]` and the next `context.state`."""

    @abstractmethod
    def act_greedily(self, outputs: Array) -> Array:
        """The best-known actions for `outputs [N, K]`."""


class Categorical(Head):
    """Samples by the inverse CDF of softmax(outputs); log-probabilities as float32 log-softmax."""

    fills = frozenset({"log_prob", "logits"})
    masks = True
    actions = frozenset({"discrete"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._shifted = np.zeros((rows, spec.action.n), np.float32)
        self._cdf = np.zeros((rows, spec.action.n), np.float32)
        self._flat = self._shifted.reshape(-1)
        self._below = self._cdf[:, :-1]
        self._total = self._cdf[:, -1]
        self._offsets = np.arange(rows, dtype=np.int64) * spec.action.n
        self._log_prob = "log_prob" in self._extras
        self._logits = "logits" in self._extras

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        shifted, cdf = self._shifted, self._cdf
        outputs = self._masked(outputs)
        np.subtract(outputs, np.maximum.reduce(outputs, axis=1, keepdims=True), shifted)
        np.add.accumulate(np.exp(shifted, cdf), 1, None, cdf)
        target = context.noise.uniform[t, :, 0] * self._total
        actions: Array = np.add.reduce(self._below <= target[:, None], 1, np.int64)
        if self._log_prob:
            np.subtract(self._flat.take(actions + self._offsets), np.log(self._total), context.extras["log_prob"][t])
        if self._logits:
            context.extras["logits"][t] = outputs
        return actions

    def act_greedily(self, outputs: Array) -> Array:
        actions: Array = np.argmax(self._masked(outputs), axis=1)
        return actions


class MultiCategorical(Head):
    """A categorical distribution for each entry of a multi_discrete action; outputs are the logits of all, in order.

    Log-probabilities are their sums. A mask `[N, sum(nvec)]` is that of all values, in the same order.
    """

    fills = frozenset({"log_prob", "logits"})
    masks = True
    actions = frozenset({"multi_discrete"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        super().__init__(spec, rows)
        self._ranges = ranges(spec.action.choices)
        self._row = np.arange(rows)

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        outputs = self._masked(outputs)
        actions: Array = np.zeros((self.rows, len(self._ranges)), np.int64)
        log_prob: Array = np.zeros(self.rows, np.float32)
        for entry, (begin, end) in enumerate(self._ranges):
            logits = outputs[:, begin:end]
            shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
            cdf = np.add.accumulate(np.exp(shifted), 1)
            total = cdf[:, -1]
            target = context.noise.uniform[t, :, entry] * total
            chosen = np.add.reduce(cdf[:, :-1] <= target[:, None], 1, np.int64)
            actions[:, entry] = chosen
            log_prob += shifted[self._row, chosen] - np.log(total)
        if "log_prob" in self._extras:
            context.extras["log_prob"][t] = log_prob
        if "logits" in self._extras:
            context.extras["logits"][t] = outputs
        return actions

    def act_greedily(self, outputs: Array) -> Array:
        outputs = self._masked(outputs)
        return np.stack([outputs[:, begin:end].argmax(1) for begin, end in self._ranges], axis=1)


class EpsilonGreedy(Head):
    """argmax of q values, or with probability epsilon a uniform action; both among the allowed ones.

    epsilon is `schedule["epsilon"]`; with the option `ladder_base` slot i of n has
    ladder_base ** (1 + ladder_alpha * i / (n - 1)) for the whole run (Horgan et al. 2018, Ape-X: 0.4 and 7).
    """

    actions = frozenset({"discrete"})
    masks = True
    takes = frozenset({"ladder_base", "ladder_alpha"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        """ConfigError for a ladder that is not one."""
        super().__init__(spec, rows)
        self._base: float | None = spec.options.get("ladder_base")
        self._alpha = spec.options.get("ladder_alpha", 0.0)
        self._epsilon: float | Array = 1.0
        self._ladder_of: Place | None = None
        if ("ladder_alpha" in spec.options) != (self._base is not None):
            raise ConfigError(f"head {spec.head!r}: options ladder_base and ladder_alpha need each other")
        if self._base is not None and not (0.0 < self._base <= 1.0 and self._alpha >= 0.0):
            raise ConfigError(
                f"head {spec.head!r}: option ladder_base {self._base} must be in (0, 1], "
                f"ladder_alpha {self._alpha} at least 0"
            )

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({EPSILON} if self._base is None else ())

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        del weights
        if self._base is None:
            self._epsilon = schedule[EPSILON]

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        if self._base is not None and context.place is not self._ladder_of:
            self._ladder_of, self._epsilon = context.place, ladder(self._base, self._alpha, context.place)
        actions: Array = self._masked(outputs).argmax(1)
        uniform = context.noise.uniform[t]
        if self.allowed is not None:
            return np.where(uniform[:, 0] < self._epsilon, nth_allowed(self.allowed, uniform[:, 1]), actions)
        np.copyto(actions, uniform[:, 1] * self.spec.action.n, "unsafe", uniform[:, 0] < self._epsilon)
        return actions

    def act_greedily(self, outputs: Array) -> Array:
        actions: Array = np.argmax(self._masked(outputs), axis=1)
        return actions


def ladder(base: float, alpha: float, place: Place) -> Array:
    """float64 `[N]`: epsilon of each slot, from `base` of the first to base ** (1 + alpha) of the last of the run."""
    epsilon: Array = base ** (1.0 + alpha * place.slots / max(1, place.total - 1))
    return epsilon


class _Continuous(Head):
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
        """From [-1, 1] to the action space."""
        assert self._low is not None and self._high is not None, "checked before"
        half = (self._high - self._low) * np.float32(0.5)
        actions: Array = (self._low + (fraction + np.float32(1.0)) * half).astype(np.float32)
        return actions.reshape(self._shape)


class Gaussian(_Continuous):
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


class SquashedGaussian(_Continuous):
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


class DeterministicNoise(_Continuous):
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


HEADS: Mapping[str, type[Head]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "epsilon_greedy": EpsilonGreedy,
    "gaussian": Gaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic_noise": DeterministicNoise,
}


def make_head(spec: ActingSpec, rows: int) -> Head:
    """The head that `spec.head` names, for `rows` rows at a time. ConfigError when there is none."""
    if spec.head in HEADS:
        return HEADS[spec.head](spec, rows)
    module, _, attribute = spec.head.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"head {spec.head!r} is unknown and cannot be loaded: {error}", fix=f"known: {', '.join(sorted(HEADS))}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Head)):
        raise ConfigError(f"head {spec.head!r} is not a zmqrl.acting.heads.Head: {found!r}")
    return found(spec, rows)


def check_schedule(head: Head, schedule: Collection[str]) -> None:
    """Check that `schedule` has the values that the head reads, and, for a head of this module, not one more.

    Raises:
        ConfigError: Names head and value, and the fix.
    """
    name, given = head.spec.head, f"it gives {sorted(schedule)}" if schedule else "it gives none"
    if missing := sorted(head.reads - set(schedule)):
        raise ConfigError(f"head {name!r} reads {missing} of the algorithm's schedule(), and {given}")
    unread = sorted(set(schedule) - head.reads) if type(head) in HEADS.values() else []
    if unread == [UNIFORM] and isinstance(head, _Continuous):
        needed = f"NoiseSpec({UNIFORM!r}, {math.prod(head.spec.action.shape)}, {UNIFORM!r})"
        raise ConfigError(f"head {name!r} does not warm up with uniform actions", fix=f"declare {needed} in acting()")
    if unread:
        read = f", only {sorted(head.reads)}" if head.reads else ""
        raise ConfigError(f"head {name!r} does not read {unread} of the algorithm's schedule(){read}")


def bounds(space: SpaceSpec) -> tuple[Array, Array] | tuple[None, None]:
    """`low` and `high` of a box, flat float32, infinite where a side has no bound; None twice where none has one."""
    if not space.low or not space.high:
        return None, None
    with np.errstate(over="ignore"):
        return np.array(space.low, np.float32), np.array(space.high, np.float32)
