"""How an algorithm wants its replay: plain data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from zmqrl.config.sections import FORBID_UNKNOWN
from zmqrl.errors import check_field

AUTO, UNIFORM, PRIORITISED = "auto", "uniform", "prioritised"


@dataclass(frozen=True)
class Prioritised:
    """Settings of prioritised replay (Schaul et al. 2016, proportional variant)."""

    alpha: float = 0.6
    """The mass of a row is (|delta| + epsilon) ** alpha."""
    beta: float = 0.4
    """Exponent of the importance weights, until `Replay.anneal` sets another."""
    epsilon: float = 1e-4
    """Keeps every mass above zero."""
    uniform_mix: float = 0.0
    """Share of rows drawn uniformly."""
    max_share: float = 0.9
    """Sequences: the priority is this share of the largest |delta| plus the rest of their mean (R2D2, section 2.3)."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "uniform_mix", "max_share"):
            check_field(self, name, 0.0 <= getattr(self, name) <= 1.0, "must be between 0 and 1")
        check_field(self, "epsilon", self.epsilon > 0.0, "must be above 0")


@dataclass(frozen=True)
class Relabel:
    """Settings of hindsight: goals of sampled transitions are replaced by goals that were achieved later.

    Strategy `future` of HER (Andrychowicz et al. 2017, sections 3.3 and 4.5). The observation is a Dict with the
    parts `goals`, as that of a `GoalEnv` of gymnasium-robotics.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    reward: str
    """Function `module:name` of goals `achieved [B, ...]`, which are those after the action, and `desired [B, ...]`;
    it returns the rewards `[B]`."""
    share: float = 0.8
    """Share of the transitions with another goal: k / (k + 1) of HER, which has k = 4."""
    terminated: str | None = None
    """Function of the same arguments that returns whether each step terminates, `[B]` bool. None: the stored flags."""
    goals: tuple[str, str] = ("achieved_goal", "desired_goal")
    """Parts of the observation: the goal that is achieved, and that of the episode."""

    def __post_init__(self) -> None:
        check_field(self, "share", 0.0 <= self.share <= 1.0, "must be between 0 and 1")


@dataclass(frozen=True)
class ReplaySpec:
    """What replay draws: transitions, or with `length` sequences inside a segment.

    The sequences of a segment of T rows start at every `stride`-th row. Each has `burn_in` rows, which only bring a
    recurrent state up to date, then `length` rows to learn from. The first `burn_in` rows of a segment are therefore
    never learned from. A subclass may add fields for its own sampler.
    """

    n_step: int = 1
    """Transitions: rewards summed before bootstrapping. T must be at least as many; in single and sync, with more than
    one, 4 times as many."""
    length: int = 0
    """Rows to learn from in a sequence; 0: transitions."""
    burn_in: int = 0
    """Rows before them, in each sequence."""
    stride: int = 0
    """Rows between the starts of two sequences of a segment; 0: `length`."""
    prioritised: Prioritised | None = None
    """None: without priorities."""
    first_priority: str | None = None
    """An extra column `[T, N]`: |value| is the first priority of a new row. None: the largest priority seen so far."""
    sampler: str = AUTO
    """`uniform`, `prioritised` or `module:Name` of a `zmqrl.replay.samplers.base.Sampler`. `auto` is one of the first
    two, by `prioritised`."""
    relabel: Relabel | None = None
    """Hindsight for transitions. None: the stored goals."""

    def __post_init__(self) -> None:
        self._check_numbers()
        own = ":" in self.sampler
        known = own or self.sampler in (AUTO, UNIFORM, PRIORITISED)
        check_field(self, "sampler", known, "must be auto, uniform, prioritised or a dotted path `module:Name`")
        if self.sampler == PRIORITISED:
            check_field(self, "prioritised", self.prioritised is not None, "sampler 'prioritised' needs its settings")
        if self.sampler == UNIFORM:
            check_field(self, "prioritised", self.prioritised is None, "sampler 'uniform' has no priorities")
        if self.prioritised is None and not own:
            check_field(self, "first_priority", self.first_priority is None, "needs `prioritised`, or your own sampler")
        check_field(self, "relabel", not (self.relabel and self.length), "needs transitions: `length` must be 0")

    @property
    def kind(self) -> str:
        """The sampler, without `auto`."""
        if self.sampler != AUTO:
            return self.sampler
        return UNIFORM if self.prioritised is None else PRIORITISED

    @property
    def every(self) -> int:
        """Rows between the starts of two sequences."""
        return self.stride or self.length

    def _check_numbers(self) -> None:
        for name, least in (("n_step", 1), ("length", 0), ("burn_in", 0), ("stride", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            check_field(self, name, whole and value >= least, f"must be a whole number of at least {least}")
        if not self.length:
            for name in ("burn_in", "stride"):
                check_field(self, name, getattr(self, name) == 0, "needs sequences: set `length`")
            return
        check_field(self, "stride", self.stride <= self.length, f"leaves rows out: the most is length {self.length}")
        what = "is of transitions: with `length`, `train` computes targets (zmqrl.ops.targets.n_step_targets)"
        check_field(self, "n_step", self.n_step == 1, what)
