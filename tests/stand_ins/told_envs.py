"""An env that goes wrong when a file tells this very process to."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

STEP_S = 0.001
WORDS = "the left arm grinds"


class Told(gym.Env[Any, Any]):
    """Looks for `<folder>/<role>-<index>`, and does what stands in it: raise, exit, crash, hang or say.

    Its first step leaves `<folder>/<role>-<index>-<pid>`. A check process,
    which steps it too, leaves nothing.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        self._folder, self._steps = Path(folder), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        if not self._steps:
            role, index = "".join(sys.orig_argv[3:4]), sys.orig_argv[-1]
            self._order = self._folder / f"{role.removeprefix('zmqrl.')}-{index}"
            if role.startswith("zmqrl.") and role != "zmqrl.template":
                Path(f"{self._order}-{os.getpid()}").touch()
        self._obey()
        time.sleep(STEP_S)  # what a step costs
        self._steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, self._steps % 50 == 0, {}

    def _obey(self) -> None:
        if not self._order.exists():
            return
        order = self._order.read_text()
        self._order.unlink()
        if order == "raise":
            raise RuntimeError("the wheel came off")
        if order == "exit":
            os._exit(7)
        if order == "crash":
            ctypes.string_at(0)
        if order == "say":
            print(WORDS, file=sys.stderr, flush=True)
        while order == "hang":
            time.sleep(STEP_S)
