"""An env that slows down while a file exists: a test keeps a run from its end for as long as it needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.stand_ins.slow_envs import Slow

HELD_STEP_S = 0.01


class Held(Slow):
    """The same rows with and without the file."""

    def __init__(self, hold: str = "") -> None:
        super().__init__(0.0)
        self._hold = Path(hold) if hold else None

    def step(self, action: Any) -> Any:
        if self._hold is not None and self._hold.exists():
            time.sleep(HELD_STEP_S)
        return super().step(action)
