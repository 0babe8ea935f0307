"""Numbers that change over a run: a field of an algorithm's configuration may be one in place of a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, SupportsFloat, TypeAlias

from annotated_types import Ge, Gt

from zmqrl.config.sections import FORBID_UNKNOWN, Fraction


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
        return self.start + done * (self.end - self.start)


@dataclass(frozen=True)
class RateSchedule(Schedule):
    """A learning rate that changes: from `start` to `end` over `fraction` of the schedules' horizon."""

    start: Annotated[float, Gt(0)]
    """Value at the start."""
    end: Annotated[float, Ge(0)] = 0.0
    """Value from `fraction` on."""


Rate: TypeAlias = Annotated[float, Gt(0)] | RateSchedule
"""Type of a learning rate."""


def value_at(setting: SupportsFloat | Schedule, progress: float) -> float:
    """A constant, or the value of a schedule at `progress` (0 .. 1) of the horizon."""
    return setting.at(progress) if isinstance(setting, Schedule) else float(setting)
