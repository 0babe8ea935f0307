"""Envs that report numbers of their own in `info`, and count them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

REPORT = {"comfort": "mean", "cost": "sum", "is_success": "last", "coldest": "min", "hottest": "max"}


class Room(gym.Env[Any, Any]):
    """Reports of each step a comfort, of some steps a cost; an episode has 3 to 12 steps, by its seed.

    `log`: folder to which each episode is written at its end, by its seed: a successor that repeats one writes the same
    file again. `fault`: what is wrong with `cost`: it is missing, or this value.
    """

    def __init__(self, log: str | None = None, fault: Any = "") -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._log, self._fault = log, fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed, self._random, self._steps = seed, np.random.default_rng(seed), list[dict[str, float]]()
        self._length = int(self._random.integers(3, 13))
        return self._obs(), {"comfort": 1e9}

    def step(self, action: Any) -> Any:
        degrees = float(self._random.normal(20.0))
        info: dict[str, Any] = {"comfort": -abs(degrees - 20.0), "coldest": degrees, "hottest": np.float32(degrees)}
        if self._fault == "" and len(self._steps) % 2 == 0:
            info["cost"] = int(action) + 1
        if self._fault not in ("", "missing"):
            info["cost"] = self._fault
        info["is_success"] = np.bool_(degrees > 20.0)
        self._steps.append(info)
        ended = len(self._steps) >= self._length
        if ended and self._log is not None:
            self._write(Path(self._log))
        return self._obs(), 1.0, ended, False, info

    def _obs(self) -> Any:
        return self._random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _write(self, folder: Path) -> None:
        values = (episode_of(self._steps)[name] for name in REPORT)
        file = folder / f".{os.getpid()}"
        file.write_text(" ".join(map(repr, map(float, values))))
        file.rename(folder / f"{self._seed}")


def episode_of(steps: list[dict[str, Any]]) -> dict[str, float]:
    """What an episode reports, by the env's own count."""
    of = {name: [float(info[name]) for info in steps if name in info] for name in REPORT}
    return {
        "comfort": sum(of["comfort"]) / len(steps),
        "cost": sum(of["cost"]),
        "is_success": of["is_success"][-1],
        "coldest": min(of["coldest"]),
        "hottest": max(of["hottest"]),
    }
