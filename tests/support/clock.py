"""A clock for what waits by `time.sleep`: exact on a machine of any speed."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """In the place of the module `time`: its time passes while somebody sleeps, and at no other moment."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
