"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0
"""Deadline that only ends a hang; no test is about it. A busy machine is many times slower than an idle one."""
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
