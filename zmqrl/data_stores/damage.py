"""Checkpoints that cannot be loaded, in a message of bounded length."""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMED = 2


def few(causes: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first causes, and how many more there are: after a power cut every file may be damaged."""
    more = [f"and {len(causes) - most} more"] if len(causes) > most else []
    return "; ".join([*causes[:most], *more])
