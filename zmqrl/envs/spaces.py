"""gymnasium spaces as plain data."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from zmqrl.errors import ConfigError
from zmqrl.types import SpaceSpec

FLATTEN = "gymnasium.wrappers:FlattenObservation"


def observation_spec(env_id: str, space: spaces.Space[object]) -> SpaceSpec:
    """A box as it is; ConfigError naming a wrapper for the rest."""
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "fiub":
        return _box(space)
    raise ConfigError(
        f"env.id: {env_id!r} has observations {_short(space)}, and only Box is supported; "
        f"add env.wrappers: [{FLATTEN!r}] or your own wrapper"
    )


def action_spec(env_id: str, space: spaces.Space[object]) -> SpaceSpec:
    """Discrete, or a box of floats; ConfigError for the rest."""
    if isinstance(space, spaces.Discrete):
        return SpaceSpec("discrete", (), "int64", n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return _box(space)
    raise ConfigError(
        f"env.id: {env_id!r} has actions {_short(space)}, and only Discrete and Box of floats are supported; "
        "add your own wrapper to env.wrappers"
    )


def _box(space: spaces.Box) -> SpaceSpec:
    low, high = space.low.reshape(-1).astype(float), space.high.reshape(-1).astype(float)
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    return SpaceSpec(
        "box",
        tuple(int(size) for size in space.shape),
        str(space.dtype),
        low=tuple(low.tolist()) if bounded else (),
        high=tuple(high.tolist()) if bounded else (),
    )


def _short(space: spaces.Space[object]) -> str:
    text = str(space)
    return text if len(text) <= 80 else f"{text[:77]}..."
