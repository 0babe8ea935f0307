"""What a check finds of an env beyond its properties."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import Struct

from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import close_env, has_state_pair
from zmqrl.envs.make import for_scores, make_for_scores, make_single, stripped
from zmqrl.envs.masks import ignored_mask
from zmqrl.envs.repeats import check_state, memory_of
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec


class EnvFindings(Struct, frozen=True):
    """Plain data: the env may have lived in another process."""

    remarks: tuple[str, ...] = ()
    """Lines for the user."""
    has_state_pair: bool = False
    """Whether the env has `get_state` and `set_state`, which may have a meaning of their own."""


def findings(env: Any, section: EnvSection, spec: EnvSpec, seed: int | None, is_quick: bool = True) -> EnvFindings:
    """Look at an env whose first steps have no fault. It may be closed, and is not to be used again.

    Args:
        env: Of `section`.
        section: The env.
        spec: Its properties.
        seed: Of the run. None: the env is not stepped.
        is_quick: Whether it may be walked without a key that requests it.

    Raises:
        ConfigError: As of `check_state`.
    """
    has_pair = has_state_pair(stripped(env)[0])
    return EnvFindings(() if seed is None else tuple(_remarks(env, section, spec, seed, is_quick)), has_pair)


def _remarks(env: Any, section: EnvSection, spec: EnvSpec, seed: int, is_quick: bool) -> Iterator[str]:
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
