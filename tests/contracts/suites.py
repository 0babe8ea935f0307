"""Suites as parameters of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def name_of(check: Callable[[Any], None]) -> str:
    """Id of a check."""
    return check.__name__
