"""Numbers that change over a run, as files have them: a constant, or points `[[env step, value], ...]`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

from msgspec import Struct

from zmqrl.loading import np
from zmqrl.types import LARGEST_FINITE

Points: TypeAlias = tuple[tuple[int, float], ...]


class _Check(Struct, frozen=True):
    """For pydantic: a number is finite as a message carries it, and points are in the order of their env steps."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(_checked, handler(source))


Number: TypeAlias = Annotated[float | Points, _Check()]
"""A constant, or points: linear between two of them, and constant outside."""


def numbers_at(schedule: Mapping[str, float | Points], env_steps: int) -> dict[str, float]:
    """The value of each number at `env_steps`, by its name."""
    return {name: _at(number, env_steps) for name, number in schedule.items()}


def _at(number: float | Points, env_steps: int) -> float:
    if not isinstance(number, tuple):
        return float(number)
    return float(np.interp(env_steps, [step for step, _ in number], [value for _, value in number]))


def _checked(number: float | Points) -> float | Points:
    points = number if isinstance(number, tuple) else ((0, number),)
    steps = [step for step, _ in points]
    if not steps or steps[0] < 0 or any(after <= step for step, after in pairwise(steps)):
        raise ValueError("must be a number, or points [[env step, value], ...] with rising env steps from 0 on")
    if any(abs(value) > LARGEST_FINITE for _, value in points):
        raise ValueError(f"a value must be at most {LARGEST_FINITE:g} in size")
    return number
