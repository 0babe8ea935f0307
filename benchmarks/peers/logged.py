"""The envs of every system: each writes its steps and episodes to a file, by one clock and one rule.

The first line of a file is the command line of the process that made the env. Records follow: at the first step, at
each `EVERY`th step and at the end of each episode.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium

FOLDER = "PEERS_STEPS"
"""Environment variable: the folder of the files."""
RECORD = struct.Struct("<dqd")
"""Seconds of CLOCK_MONOTONIC, steps of this env until then, return of the episode that the step ended (or NaN)."""
EVERY = 32
NUMBERS = itertools.count()


class Logged(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts steps."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        path = Path(os.environ[FOLDER], f"{os.getpid()}-{next(NUMBERS)}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC)
        os.write(self._file, Path("/proc/self/cmdline").read_bytes().replace(b"\n", b" ") + b"\n")
        self._steps, self._return = 0, 0.0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._return = 0.0
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        stepped = self.env.step(action)
        self._steps += 1
        self._return += float(stepped[1])
        ended = stepped[2] or stepped[3]
        if ended or self._steps % EVERY == 0 or self._steps == 1:
            returned = self._return if ended else float("nan")
            os.write(self._file, RECORD.pack(time.monotonic(), self._steps, returned))
        return stepped


def cartpole(**given: Any) -> Logged:
    """CartPole-v1 with its limit of 500 steps."""
    return Logged(gymnasium.make("CartPole-v1", disable_env_checker=True, **given))


def pendulum(**given: Any) -> Logged:
    """Pendulum-v1 with its limit of 200 steps."""
    return Logged(gymnasium.make("Pendulum-v1", disable_env_checker=True, **given))
