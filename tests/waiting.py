"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 30.0
"""On a machine that does other work too; a bound in seconds is in its test."""
LOOK_EVERY_S = 0.02


def until(
    what: Callable[[], Any], text: object = "it", deadline_s: float = WAIT_S, every_s: float = LOOK_EVERY_S
) -> Any:
    """The first true value of `what`, which is called every `every_s`. `text`, also as a function, names it."""
    deadline = time.monotonic() + deadline_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {text() if callable(text) else text}"
        time.sleep(every_s)
    return found
