"""Conversion of gymnasium's spaces to `SpaceSpec`, and one message for those that are not supported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from zmqrl.errors import ConfigError
from zmqrl.spaces import ACTION_MASK, Array, SpaceSpec, composite

Space: TypeAlias = spaces.Space[Any]
Path: TypeAlias = tuple[str | int, ...]
OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"
MASK_DTYPES = ("bool", "int8", "uint8")


def observation_spec(env_id: str, space: Space) -> SpaceSpec:
    """The space of observations; ConfigError names the part that is not supported, and what is."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _leaf(env_id, "", space)
    parts = [(".".join(map(str, path)), inner, path) for path, inner in _leaves(space, ())]
    names = [name for name, _, _ in parts]
    if not parts or len(set(names)) < len(names):
        what = f"two parts named {max(names, key=names.count)!r}" if parts else "no parts"
        raise ConfigError(
            f"has observations {_short(space)} with {what}",
            key=("env", "id"),
            value=repr(env_id),
            is_subject=True,
            fix=_wrap(),
        )
    return composite([(name, _leaf(env_id, name, inner), path) for name, inner, path in parts])


def action_spec(env_id: str, space: Space) -> SpaceSpec:
    """The space of actions; ConfigError for those that are not supported."""
    if isinstance(space, spaces.Discrete):
        return _discrete(space)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return _several(space)
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return _box(space, *_bounds(space, np.any))
    what = f"has actions {_short(space)}, and only {ACTIONS} are supported"
    raise ConfigError(what, key=("env", "id"), value=repr(env_id), is_subject=True, fix=_wrap())


def check_mask(env_id: str, observation: SpaceSpec, action: SpaceSpec) -> None:
    """Raise `ConfigError` when the part `action_mask` does not fit the actions."""
    mask, entries = observation.action_mask, sum(action.choices)
    if mask is None:
        return
    if not entries:
        what = f"has an observation part {ACTION_MASK}, but its actions are not discrete"
        raise ConfigError(what, key=("env", "id"), value=repr(env_id), is_subject=True, fix="rename this part")
    if mask.space.kind != "box" or mask.space.shape != (entries,) or mask.space.dtype not in MASK_DTYPES:
        raise ConfigError(
            f"the {ACTION_MASK} of its observations is {mask.space.dtype} {list(mask.space.shape)}",
            key=("env", "id"),
            value=repr(env_id),
            fix=(
                f"it must be {', '.join(MASK_DTYPES[:-1])} or {MASK_DTYPES[-1]} [{entries}], 1 for each "
                "action that is allowed"
            ),
        )


def _leaves(space: Space, path: Path) -> Iterator[tuple[Path, Space]]:
    if isinstance(space, spaces.Dict):
        inner: Mapping[Any, Space] = space.spaces
    elif isinstance(space, spaces.Tuple):
        inner = dict(enumerate(space.spaces))
    else:
        yield path, space
        return
    for key, child in inner.items():
        yield from _leaves(child, (*path, key))


def _leaf(env_id: str, name: str, space: Space) -> SpaceSpec:
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "fiub":
        return _box(space, *(side[:1] if len(set(side)) == 1 else side for side in _bounds(space, np.all)))
    if isinstance(space, spaces.Discrete):
        return _discrete(space)
    if isinstance(space, spaces.MultiDiscrete):
        return _several(space)
    if isinstance(space, spaces.MultiBinary):
        return SpaceSpec("box", _shape(space), str(space.dtype), n=2, low=(0.0,), high=(1.0,))
    part = f"part {name!r} of the observations is" if name else "observations are"
    found = f"{part} {_short(space)}, which is not supported (supported: {OBSERVATIONS})"
    raise ConfigError(found, key=("env", "id"), value=repr(env_id), fix=_wrap())


def _discrete(space: Any) -> SpaceSpec:
    return SpaceSpec("discrete", (), "int64", n=int(space.n), start=int(space.start))


def _several(space: spaces.MultiDiscrete | spaces.MultiBinary) -> SpaceSpec:
    shape = _shape(space)
    nvec = np.full(shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
    starts = np.zeros(shape, np.int64) if isinstance(space, spaces.MultiBinary) else space.start
    return SpaceSpec(
        "multi_discrete",
        (int(nvec.size),),
        "int64",
        nvec=tuple(nvec.reshape(-1).tolist()),
        starts=tuple(starts.reshape(-1).tolist()) if starts.any() else (),
        env_dtype=str(space.dtype),
        env_shape=shape,
    )


def _box(space: spaces.Box, low: tuple[float, ...], high: tuple[float, ...]) -> SpaceSpec:
    return SpaceSpec("box", _shape(space), str(space.dtype), low=low, high=high)


def _bounds(space: spaces.Box, enough: Callable[[Array], Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bounds of each entry; empty twice unless `enough` of them, any or all, are finite."""
    low, high = space.low.reshape(-1).astype(float), space.high.reshape(-1).astype(float)
    bounded = enough(np.isfinite((low, high)))
    return (tuple(low.tolist()), tuple(high.tolist())) if bounded else ((), ())


def _shape(space: Space) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape or ())


def _short(space: Space) -> str:
    text = str(space).replace("\n", "")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _wrap() -> str:
    return "add your own wrapper to env.wrappers"
