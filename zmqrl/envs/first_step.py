"""One reset and one step of the env before anything is started: a fault of it costs no start of the processes."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from zmqrl.envs.base import random_actions
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

LIMIT_S = 2.0
"""An env that takes longer for its first step is left to the workers."""
_HERE = str(Path(__file__).parent)


class _OutOfTime(BaseException):
    """Not an `Exception`: what the env does with those does not concern it."""


def check_first_step(env: Any, spec: EnvSpec, seed: int) -> None:
    """Reset and step `env` as the first worker will, with a random action. It is not closed.

    The limit is a signal, so outside of the main thread nothing is checked.

    Args:
        env: One env, which is not used after this.
        spec: Its properties.
        seed: Of the run; the episode has the seed of the first one.

    Raises:
        ConfigError: The code of the env raised, or returned what its spaces do not allow.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    vector_env = make_seeded(spec, lambda: env, spec.slots_per_env, seed, 0)

    def first_step() -> None:
        obs = vector_env.start()
        vector_env.step(random_actions(spec, vector_env.num_envs, stream(seed, "first step"), obs))

    try:
        _within(LIMIT_S, first_step)
    except EnvFault as fault:
        raise ConfigError(f"env.id: {fault}{_traceback(fault.__cause__)}") from fault


def _traceback(cause: BaseException | None) -> str:
    """On further lines, from the first frame that is not of this package."""
    if cause is None:
        return ""
    shown = traceback.TracebackException.from_exception(cause)
    while len(shown.stack) > 1 and shown.stack[0].filename.startswith(_HERE):
        del shown.stack[0]
    return "\n" + "".join(shown.format()).rstrip()


def _within(limit_s: float, call: Callable[[], None]) -> None:
    """End `call` at the limit. A timer of the caller's program continues."""
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
    except _OutOfTime:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - begun), 1e-3), interval_s)
