"""The check of an env before anything is started: a fault of its first steps costs no start of the processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import numpy as np

from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import VectorEnv, close_env, random_actions
from zmqrl.envs.make import examined, for_scores, make_for_scores, make_single
from zmqrl.envs.masks import ignored_mask
from zmqrl.envs.repeats import check_state, memory_of
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.messages.check import Stage, data_of
from zmqrl.plugins import traceback_of
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

SETTLE_S = 2.0
"""After the first step: an env whose further steps take longer is left to the workers."""
QUICK_S = 1.0
"""Longest duration of the first steps of an env that is stepped again."""
FURTHER_S, STEPS, EPISODES = 0.3, 200, 2
"""After the first step: seconds at most, steps at most, and episodes whose end is enough."""


def check_env(section: Any, seed: int | None) -> Generator[Stage, None, Any]:
    """Make an env; reset and step it as a worker will, with random actions and seeds of its own; close it.

    To be carried out in a check process (`zmqrl.supervision.check_process.call`).

    Args:
        section: `EnvSection`, as plain data.
        seed: Of the run; seeds and actions follow from it. None: the env is not stepped.

    Returns:
        `EnvSpec` of the env with remarks for the user, as plain data.

    Raises:
        ConfigError: It cannot be made, its code raised, or it returned what its spaces do not allow.
    """
    own_section = from_json(EnvSection, section)
    yield Stage("construction")
    env, spec = examined(own_section)
    found = to_json(spec)
    if seed is not None:
        begun = time.monotonic()
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
            mask = ignored_mask(env, spec)  # an action that it forbids may be what is wrong
            raise ConfigError(f"env.id: {fault}{'' if mask is None else f'; {mask}'}\n{text}".rstrip()) from fault
        if time.monotonic() - begun < QUICK_S:
            yield Stage("episodes with the same seed", data_of(found), SETTLE_S)
            found = to_json(replace(spec, remarks=tuple(remarks(env, own_section, spec, seed))))
        if spec.state is not None:
            close_env(env)
            yield Stage("get_state and set_state")
            check_state(partial(make_single, own_section), spec, seed)
    yield Stage("close")
    close_env(env)
    return found


def remarks(env: Any, section: EnvSection, spec: EnvSpec, seed: int) -> Iterator[str]:
    """Lines for the user. The env may be closed, and is not to be used again.

    Args:
        env: Of `section`.
        section: The env.
        spec: Its properties.
        seed: Of the run.
    """
    seed = int(stream(seed, "findings").integers(1 << 31))  # whoever records episodes by seeds sees none of the run's
    mask = ignored_mask(env, spec)
    if mask is not None:
        yield f"env.id: {mask}"
    memory = memory_of(for_scores(env), partial(make_for_scores, section), spec, seed)
    if memory is not None:
        layers = [str(entry if isinstance(entry, str) else next(iter(entry))) for entry in section.wrappers]
        wrapped = f" with {', '.join(path.rpartition(':')[2] for path in layers)}" if layers else ""
        yield f"env.id: {section.id!r}{wrapped} {memory}"


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
