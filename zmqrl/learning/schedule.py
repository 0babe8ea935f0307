"""Numbers that change over a run: a field of an algorithm's configuration may be one in place of a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Predicate

from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction
from zmqrl.learning.base import Progress
from zmqrl.loading import np


@dataclass(frozen=True)
class Schedule:
    """Change from `start` to `end` over `fraction` of the schedules' horizon, and `end` from then on."""

    __pydantic_config__ = FORBID_UNKNOWN

    start: float
    """Value at the start."""
    end: float = 0.0
    """Value from `fraction` on."""
    fraction: Fraction = 1.0
    """Part of the schedules' horizon (`run.schedule_env_steps`) over which the value goes from `start` to `end`."""
    shape: Literal["linear", "exponential"] = "linear"
    """`exponential` multiplies by the same factor in each env step; both ends are then above 0."""

    def __post_init__(self) -> None:
        if self.shape == "exponential" and not min(self.start, self.end) > 0:
            raise ValueError(
                f"a schedule from {self.start:g} to {self.end:g} cannot be exponential: set both above 0, or "
                "shape: linear"
            )

    def at(self, progress: float) -> float:
        """The value at `progress` (0 .. 1) of the horizon."""
        done = 1.0 if self.fraction == 0 else min(1.0, progress / self.fraction)
        if self.shape == "exponential":
            return float(self.start * (self.end / self.start) ** done)
        if self.end == 0:  # the rounding of `learning_rate_schedule: linear`, which PPO had
            return self.start * (1.0 - done)
        return self.start + done * (self.end - self.start)


@dataclass(frozen=True)
class RateSchedule(Schedule):
    """A learning rate that changes: from `start` to `end` over `fraction` of the schedules' horizon."""

    start: Annotated[float, Gt(0)]
    """Value at the start."""
    end: Annotated[float, Ge(0)] = 0.0
    """Value from `fraction` on."""


def _is_rate(points: Sequence[tuple[int, float]]) -> bool:
    if not any(value > 0 for _, value in points):
        raise ValueError("a learning rate must be above 0 somewhere")
    return True


RatePoints: TypeAlias = Annotated[Points[Annotated[float, Ge(0)]], Predicate(_is_rate)]
Scheduled: TypeAlias = float | Schedule | Points[float]
"""Type of a number that may change; `value_at` has its value."""
Rate: TypeAlias = Annotated[float, Gt(0)] | RateSchedule | RatePoints
"""Type of a learning rate."""


def value_at(setting: Scheduled, progress: Progress) -> float:
    """A constant, or the value of a schedule at this point of the run."""
    if isinstance(setting, Schedule):
        return setting.at(progress.fraction)
    if isinstance(setting, (tuple, list)):
        steps, values = zip(*setting, strict=True)
        return float(np.interp(progress.done, steps, values))
    return float(setting)


def is_points(setting: Any) -> bool:
    """Whether a setting is a list of pairs."""
    return isinstance(setting, (tuple, list)) and all(isinstance(point, (tuple, list)) for point in setting)
