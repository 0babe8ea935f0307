"""Points `[[env step, value], ...]`: numbers that change over a run, as files have them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Struct

from zmqrl.types import LARGEST_FINITE

T = TypeVar("T")


class _Check(Struct, frozen=True):
    """For pydantic: a number is finite as a message carries it, and points are in the order of their env steps."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(_checked, handler(source))


Points: TypeAlias = Annotated[tuple[tuple[int, T], ...], _Check()]
"""Linear between two points, and constant outside: `zmqrl.learning.value_at` has the value."""
Number: TypeAlias = Annotated[float | tuple[tuple[int, float], ...], _Check()]
"""A constant, or points."""


def _checked(number: Any) -> Any:
    points = number if isinstance(number, tuple) else ((0, number),)
    steps = [step for step, _ in points]
    if not steps or steps[0] < 0 or any(after <= step for step, after in pairwise(steps)):
        raise ValueError("points [[env step, value], ...] must be one or more, with rising env steps from 0 on")
    if any(abs(value) > LARGEST_FINITE for _, value in points):
        raise ValueError(f"a value must be at most {LARGEST_FINITE:g} in size")
    return number
