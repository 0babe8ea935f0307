"""A `Report` that keeps what it receives."""

from __future__ import annotations


class Reports(list[tuple[str, str]]):
    """Cause, and what was done about it."""

    def __call__(self, cause: str, done: str) -> None:
        self.append((cause, done))
