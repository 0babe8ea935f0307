"""Heads: from a network's outputs `[N, K]` to actions. One small class each; an own one is a dotted path `a.b:Head`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from zmqrl.acting.base import ActingContext, Place
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.loading import np
from zmqrl.spaces import SpaceKind, nth_allowed, ranges
from zmqrl.types import Array, SpaceSpec, Weights

BOUNDS_FIX = "correct the bounds, or change the action space by a wrapper in env.wrappers"
FORBIDDEN = -1e30
"""The logit of an action that a mask forbids: its probability is exactly 0, and sums stay finite."""
EPSILON = "epsilon"
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
        return outputs if self.allowed is None else np.where(self.allowed, outputs, np.float32(FORBIDDEN))

    @property
    def reads(self) -> frozenset[str]:
        """Names of the values of the schedule that `load` needs."""
        return frozenset()

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:  # noqa: B027 - some need nothing
        """Take what the head needs of a version."""

    @abstractmethod
    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        """Actions for `outputs [N, K]`, exploring; writes `context.extras[name][t]` and the next `context.state`."""

    def complete(self, outputs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:  # noqa: B027
        """Fill further extras `context.extras[name] [T, N, ...]` after the last row, such as a first priority.

        A head without this method of its own costs nothing. With it the outputs of a segment are kept, and the layers
        compute one more: that of the observation after the last row, without noise.

        Args:
            outputs: float32 `[T + 1, N, K]`: what `act` received for every row, then that further one. A mask is not
                applied. If row t ends an episode, `outputs[t + 1]` is of the true last observation of the episode.
            columns: Of the segment: `obs [T + 1, N, ...]` (with stacks of k frames `[T + k, N, ...]`), and `action`,
                `reward`, `terminated`, `truncated`, `valid`, `[T, N, ...]` each. To be read only.
            context: That of all rows.
        """

    @property
    def completes(self) -> bool:
        """Whether it has a method `complete` of its own."""
        return type(self).complete is not Head.complete

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

    epsilon is `schedule["epsilon"]`; with the option `ladder` env i of n has epsilon ** (1 + ladder * i / (n - 1))
    (Horgan et al. 2018, Ape-X: 0.4 and 7).
    """

    actions = frozenset({"discrete"})
    masks = True
    takes = frozenset({"ladder"})

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        """ConfigError for a ladder below 0."""
        super().__init__(spec, rows)
        self._ladder = spec.options.get("ladder", 0.0)
        self._given = 1.0
        self._epsilon: float | Array = 1.0
        self._ladder_of: Place | None = None
        if not self._ladder >= 0.0:
            raise ConfigError(f"head {spec.head!r}: option ladder {self._ladder} must be at least 0")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({EPSILON})

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        del weights
        self._given = self._epsilon = schedule[EPSILON]
        self._ladder_of = None

    def act(self, outputs: Array, t: int, context: ActingContext) -> Array:
        if self._ladder and context.place is not self._ladder_of:
            self._ladder_of, self._epsilon = context.place, ladder(self._given, self._ladder, context.place)
        actions: Array = self._masked(outputs).argmax(1)
        uniform = context.noise.uniform[t]
        if self.allowed is not None:
            return np.where(uniform[:, 0] < self._epsilon, nth_allowed(self.allowed, uniform[:, 1]), actions)
        np.copyto(actions, uniform[:, 1] * self.spec.action.n, "unsafe", uniform[:, 0] < self._epsilon)
        return actions

    def act_greedily(self, outputs: Array) -> Array:
        actions: Array = np.argmax(self._masked(outputs), axis=1)
        return actions


def ladder(epsilon: float, alpha: float, place: Place) -> Array:
    """float64 `[N]`: that of each slot, from `epsilon` of the first to epsilon ** (1 + alpha) of the last of a run."""
    found: Array = epsilon ** (1.0 + alpha * place.slots / max(1, place.total - 1))
    return found


def bounds(space: SpaceSpec) -> tuple[Array, Array] | tuple[None, None]:
    """`low` and `high` of a box, flat float32, infinite where a side has no bound; None twice where none has one."""
    if not space.low or not space.high:
        return None, None
    with np.errstate(over="ignore"):
        return np.array(space.low, np.float32), np.array(space.high, np.float32)


def clip_to(space: SpaceSpec) -> Callable[[Array], Array]:
    """Function of stored actions `[..., *shape]` that clips them to `space`; without bounds they stay as they are."""
    low, high = bounds(space)
    if low is None or high is None:
        return lambda actions: actions
    sides = low.reshape(space.shape), high.reshape(space.shape)
    return lambda actions: np.clip(actions, *sides)
