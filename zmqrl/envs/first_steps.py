"""The first steps of the env before anything is started: a fault of them costs no start of the processes."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from zmqrl.envs.base import VectorEnv, random_actions
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

LIMIT_S = 2.0
"""An env that takes longer for its first step is left to the workers."""
FURTHER_S, STEPS, EPISODES = 0.3, 200, 2
"""After the first step: seconds at most, steps at most, and episodes whose end is enough."""
_HERE = str(Path(__file__).parent)


class _OutOfTime(BaseException):
    """Not an `Exception`: what the env does with those does not concern it."""


def check_first_steps(env: Any, spec: EnvSpec, seed: int) -> None:
    """Reset and step `env` as the first worker will, with random actions. It is not closed.

    The limits are signals, so outside of the main thread nothing is checked. An env that is too slow for another step
    within the limit is not interrupted in it.

    Args:
        env: One env, which is not used after this.
        spec: Its properties.
        seed: Of the run; the episode has the seed of the first one.

    Raises:
        ConfigError: The code of the env raised, or returned what its spaces do not allow.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    walk = _Walk(spec, make_seeded(spec, lambda: env, spec.slots_per_env, seed, 0), stream(seed, "first step"))
    try:
        if _within(LIMIT_S, walk.begin):
            _within(FURTHER_S, walk.go_on)
    except EnvFault as fault:
        raise ConfigError(f"env.id: {fault}{_traceback(fault.__cause__)}") from fault


class _Walk:
    """Steps with random actions, and how long a reset and a step take."""

    def __init__(self, spec: EnvSpec, vector_env: VectorEnv, drawn: np.random.Generator) -> None:
        self._spec, self._vector_env, self._drawn = spec, vector_env, drawn
        self._reset_s = self._step_s = 0.0
        self._ended = 0
        self._resets_next = False

    def begin(self) -> None:
        """The first reset and step."""
        begun = time.monotonic()
        self._obs = self._vector_env.start()
        self._reset_s = time.monotonic() - begun
        self._step()

    def go_on(self) -> None:
        """Further steps, as far as the limits allow."""
        end = time.monotonic() + FURTHER_S
        for _ in range(STEPS - 1):
            next_s = self._reset_s if self._resets_next else self._step_s
            if self._ended >= EPISODES or time.monotonic() + next_s > end:
                return
            self._step()

    def _step(self) -> None:
        begun, count = time.monotonic(), self._vector_env.num_envs
        done = self._vector_env.step(random_actions(self._spec, count, self._drawn, self._obs))
        self._obs = done.obs
        if not self._resets_next:
            self._step_s = max(self._step_s, time.monotonic() - begun)
        self._resets_next = bool((done.terminated | done.truncated).all())
        self._ended += self._resets_next


def _traceback(cause: BaseException | None) -> str:
    """On further lines, from the first frame that is not of this package."""
    if cause is None:
        return ""
    shown = traceback.TracebackException.from_exception(cause)
    while len(shown.stack) > 1 and shown.stack[0].filename.startswith(_HERE):
        del shown.stack[0]
    return "\n" + "".join(shown.format()).rstrip()


def _within(limit_s: float, call: Callable[[], None]) -> bool:
    """End `call` at the limit, and return whether it ended before. A timer of the caller's program continues."""
    armed = True

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if armed:
            raise _OutOfTime

    begun, before = time.monotonic(), signal.signal(signal.SIGALRM, on_alarm)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        try:
            call()
        finally:
            armed = False
        return True
    except _OutOfTime:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - begun), 1e-3), interval_s)
