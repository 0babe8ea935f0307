"""What a check finds of an env beyond its properties, once its first steps have no fault."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import for_scores, make_for_scores
from zmqrl.envs.masks import ignored_mask
from zmqrl.envs.repeats import memory_of
from zmqrl.random_streams import stream
from zmqrl.types import EnvSpec


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
