"""The first steps of the env before anything is started: a fault of them costs no start of the processes."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zmqrl.envs.base import VectorEnv, random_actions
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

LIMIT_S = 2.0
"""An env whose first steps take longer is left to the workers."""
FURTHER_S, STEPS, EPISODES = 0.3, 200, 2
"""After the first step: seconds at most, steps at most, and episodes whose end is enough."""
CHUNK = 1 << 16
_HERE = str(Path(__file__).parent)


def check_first_steps(env: Any, spec: EnvSpec, seed: int) -> None:
    """Reset and step `env` as a worker will, with random actions and seeds of its own, in a child process.

    The child is a copy of this process, so the env is not constructed again, and `env` itself stays as it is. What the
    env starts, blocks or breaks ends with the child.

    Args:
        env: One env.
        spec: Its properties.
        seed: Of the run; seeds and actions follow from it.

    Raises:
        ConfigError: The code of the env raised, returned what its spaces do not allow, or ended its process.
    """
    for stream_of_text in (sys.stdout, sys.stderr):
        stream_of_text.flush()  # the child writes nothing twice
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: a child that waits for one is killed
        pid = os.fork()
    if pid == 0:
        _in_child(env, spec, seed, writer)
    os.close(writer)
    try:
        fault = _fault_within(LIMIT_S, reader)
    finally:
        os.close(reader)
        for kill in (os.kill, os.killpg):  # it may not have its group yet
            with suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if fault is None:
        return
    if not fault.endswith(_COMPLETE):
        raise ConfigError(f"env.id: the env ended its process in the first steps ({_how(status)})")
    if fault != _COMPLETE:
        raise ConfigError(f"env.id: {fault.removesuffix(_COMPLETE)}")


_COMPLETE = "\0"
"""Ends the message of the child."""


def _in_child(env: Any, spec: EnvSpec, seed: int, writer: int) -> NoReturn:
    said = ""
    try:
        os.setpgid(0, 0)
        drawn = stream(seed, "first steps")
        own = int(drawn.integers(1 << 31))  # whoever records episodes by their seed sees none of the run's
        walk = _Walk(spec, make_seeded(spec, lambda: env, spec.slots_per_env, own, 0), drawn)
        walk.begin()
        walk.go_on()
    except EnvFault as fault:
        said = f"{fault}{_traceback(fault.__cause__)}"
    finally:  # nothing of the caller's is run here, whatever the env has raised
        with suppress(BaseException):
            os.write(writer, said.encode()[: CHUNK - 1] + _COMPLETE.encode())
            for stream_of_text in (sys.stdout, sys.stderr):
                stream_of_text.flush()
        os._exit(0)


def _fault_within(limit_s: float, reader: int) -> str | None:
    """The message of the child; None: it takes longer."""
    said, end = b"", time.monotonic() + limit_s
    while not said.endswith(_COMPLETE.encode()):
        if not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        chunk = os.read(reader, CHUNK)
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace")


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.WEXITSTATUS(status)}"


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
    while shown.stack and shown.stack[0].filename.startswith(_HERE):
        del shown.stack[0]
    if not shown.stack:
        return ""
    return "\n" + "".join(shown.format()).rstrip()
