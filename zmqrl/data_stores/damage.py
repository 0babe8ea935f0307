"""Checkpoints that cannot be loaded, in a message of bounded length."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_NAMED = 2


def few(causes: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first causes, and how many more there are: after a power cut every file may be damaged."""
    more = [f"and {len(causes) - most} more"] if len(causes) > most else []
    return "; ".join([*causes[:most], *more])


@contextmanager
def unlogged() -> Iterator[None]:
    """Damaged files are not logged: the caller reports them, or the learner does."""
    logger = logging.getLogger("zmqrl.data_stores.directory")

    def drop(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
