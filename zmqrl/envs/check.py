"""The check of an env before anything is started: a fault of its first steps costs no start of the processes."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import numpy as np

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import VectorEnv, close_env, random_actions
from zmqrl.envs.make import examined
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.messages.check import Stage, data_of
from zmqrl.plugins import traceback_of
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

SETTLE_S = 2.0
"""After the first step: an env whose further steps take longer is left to the workers."""
FURTHER_S, STEPS, EPISODES = 0.3, 200, 2
"""After the first step: seconds at most, steps at most, and episodes whose end is enough."""


def check_env(section: Any, seed: int | None) -> Generator[Stage, None, Any]:
    """Make an env; reset and step it as a worker will, with random actions and seeds of its own; close it.

    To be carried out in a check process (`zmqrl.supervision.check_process.call`).

    Args:
        section: `EnvSection`, as plain data.
        seed: Of the run; seeds and actions follow from it. None: the env is not stepped.

    Returns:
        `EnvSpec` of the env, as plain data.

    Raises:
        ConfigError: It cannot be made, its code raised, or it returned what its spaces do not allow.
    """
    yield Stage("construction")
    env, spec = examined(from_json(EnvSection, section))
    found = to_json(spec)
    if seed is not None:
        drawn = stream(seed, "first steps")
        own = int(drawn.integers(1 << 31))  # whoever records episodes by their seed sees none of the run's
        walk = _Walk(spec, make_seeded(spec, lambda: env, spec.slots_per_env, own, 0), drawn)
        try:
            yield Stage("first reset and step")
            walk.begin()
            yield Stage("further steps", data_of(found), SETTLE_S)
            walk.go_on()
        except EnvFault as fault:
            text = "" if fault.__cause__ is None else traceback_of(fault.__cause__)
            raise ConfigError(f"env.id: {fault}\n{text}".rstrip()) from fault
    yield Stage("close", data_of(found))
    close_env(env)
    return found


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
