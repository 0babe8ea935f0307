"""What a check finds of an env beyond its properties, once its first steps have no fault."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import close_env
from zmqrl.envs.first_steps import check_first_steps
from zmqrl.envs.make import for_scores, make_for_scores, make_single, probe
from zmqrl.envs.masks import ignored_mask
from zmqrl.envs.repeats import check_state, memory_of
from zmqrl.errors import ConfigError
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec

QUICK_S = 1.0
"""Longest duration of the first steps of an env that is walked again."""


def check_env(section: EnvSection, seed: int | None) -> EnvSpec:
    """Properties of an env, its first steps, and remarks on it. `seed`: of the run; None: the env is not stepped.

    Raises:
        ConfigError: As of `probe`, `check_first_steps` and `check_state`.
    """
    found: list[str] = []

    def check(env: Any, spec: EnvSpec) -> None:
        if seed is None:
            return
        begun = time.monotonic()
        try:
            check_first_steps(env, spec, seed)
        except ConfigError as error:
            mask = ignored_mask(env, spec)  # an action that it forbids may be what is wrong
            if mask is None:
                raise
            what, _, traceback = str(error).partition("\n")
            raise ConfigError(f"{what}; {mask}\n{traceback}") from error
        found.extend(remarks(env, section, spec, seed, is_quick=time.monotonic() - begun < QUICK_S))

    return replace(probe(section, check), remarks=tuple(found))


def remarks(env: Any, section: EnvSection, spec: EnvSpec, seed: int, is_quick: bool = True) -> Iterator[str]:
    """Lines for the user. The env may be closed, and is not to be used again.

    Args:
        env: Of `section`.
        section: The env.
        spec: Its properties.
        seed: Of the run.
        is_quick: Whether it may be walked without a key that requests it.

    Raises:
        ConfigError: As of `check_state`.
    """
    seed = int(stream(seed, "findings").integers(1 << 31))  # whoever records episodes by seeds sees none of the run's
    mask = ignored_mask(env, spec) if is_quick else None
    if mask is not None:
        yield f"env.id: {mask}"
    memory = memory_of(for_scores(env), partial(make_for_scores, section), spec, seed) if is_quick else None
    if memory is not None:
        layers = [str(entry if isinstance(entry, str) else next(iter(entry))) for entry in section.wrappers]
        wrapped = f" with {', '.join(path.rpartition(':')[2] for path in layers)}" if layers else ""
        yield f"env.id: {section.id!r}{wrapped} {memory}"
    if spec.state is not None:
        close_env(env)
        check_state(partial(make_single, section), spec, seed)
