"""Data sets in the layout of Minari: `main_data.hdf5` with a group for each episode, and `metadata.json`.

The layout is that of Minari 0.5 (https://minari.farama.org/content/dataset_standards). `h5py` is imported at its use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zmqrl.acting.heads import clip_to
from zmqrl.data_sets.episodes import Episode
from zmqrl.envs.packing import packed_batch
from zmqrl.envs.returned import KINDS, BadValue
from zmqrl.errors import ConfigError, name_of
from zmqrl.spaces import SpaceSpec, view
from zmqrl.types import Array, EnvSpec

DATA, MAIN, METADATA = "data", "main_data.hdf5", "metadata.json"
MINARI_VERSION = "0.5.0"
"""Version of the layout, as Minari compares it."""
INSTALL = "run in the checkout of zmqrl: pip install '.[minari]'"
UNFINISHED = "unfinished"
"""Attribute of an episode that its env has not ended."""
ROWS = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
"""Name of a dataset, and of the field of `Episode`."""


def h5py_of(what: str) -> Any:
    """The module `h5py`. ConfigError, which names `what` needs it, when it is missing on this machine."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(f"{what} needs the package h5py, which is missing", fix=INSTALL) from error
    return h5py


def write_data_set(folder: Path, env: EnvSpec, algorithm: str, episodes: Iterable[Episode]) -> tuple[int, int]:
    """Write `folder/data`, which replaces one that is there; the numbers of episodes and of env steps.

    Both files are complete once they have their names. OSError when they cannot be written.
    """
    h5py, data = h5py_of("writing a data set"), folder / DATA
    data.mkdir(parents=True, exist_ok=True)
    temporary, count, steps = data / f".{MAIN}", 0, 0
    with h5py.File(temporary, "w", track_order=True) as file:
        for count, episode in enumerate(episodes, 1):
            group, length = file.create_group(f"episode_{count - 1}"), len(episode.reward)
            group.attrs.update({"id": count - 1, "total_steps": length, UNFINISHED: not episode.is_finished})
            _write_space(group, "observations", env.observation, episode.obs)
            actions = clip_to(env.action)(episode.action)  # those of the policy may be beyond the bounds
            _write_space(group, "actions", env.action, actions.astype(episode.action.dtype, copy=False))
            for name, field in ROWS.items():
                group.create_dataset(name, data=getattr(episode, field))
            steps += length
    metadata = {
        "dataset_id": f"zmqrl/{re.sub(r'[^-_a-zA-Z0-9]+', '-', folder.name).strip('-') or 'recording'}-v0",
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(space_data(env.observation)),
        "action_space": json.dumps(space_data(env.action)),
        "algorithm_name": algorithm,
        "minari_version": MINARI_VERSION,
        "zmqrl_env": env.id,
    }
    os.replace(temporary, data / MAIN)
    (data / f".{METADATA}").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    os.replace(data / f".{METADATA}", data / METADATA)
    return count, steps


def space_data(space: SpaceSpec) -> dict[str, Any]:
    """A space as Minari serialises it; bounds that a `SpaceSpec` does not store are infinite."""
    if space.parts:
        return _composite({part.path: space_data(part.space) for part in space.parts})
    if space.kind == "discrete":
        return {"type": "Discrete", "dtype": "int64", "start": space.start, "n": space.n}
    shape = space.env_shape or space.shape
    if space.kind == "multi_discrete":
        nvec, start = (
            np.array(numbers).reshape(shape) for numbers in (space.nvec, space.starts or [0] * space.shape[0])
        )
        dtype = space.env_dtype if np.dtype(space.env_dtype).itemsize > 1 else "int64"
        return {"type": "MultiDiscrete", "dtype": dtype, "nvec": nvec.tolist(), "start": start.tolist()}
    low, high = (_bound(space, side, numbers) for side, numbers in ((-1, space.low), (1, space.high)))
    return {"type": "Box", "dtype": space.dtype, "shape": list(shape), "low": low, "high": high}


def _bound(space: SpaceSpec, side: int, numbers: tuple[float, ...]) -> Any:
    dtype = np.dtype(space.dtype)
    if not numbers:
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, most = (0.0, 1.0) if dtype.kind == "b" else (-np.inf, np.inf)
        least, most = (least, most) if limits is None else (limits.min, limits.max)
        numbers = (most if side > 0 else least,)
    full = numbers if len(numbers) > 1 else numbers * int(np.prod(space.shape))
    return np.array(full, float).reshape(space.shape).tolist()


def _composite(leaves: Mapping[tuple[str | int, ...], dict[str, Any]]) -> dict[str, Any]:
    if () in leaves:
        return leaves[()]
    keys = list(dict.fromkeys(path[0] for path in leaves))
    inner = {key: _composite({path[1:]: leaf for path, leaf in leaves.items() if path[0] == key}) for key in keys}
    if isinstance(keys[0], int):
        return {"type": "Tuple", "subspaces": list(inner.values())}
    return {"type": "Dict", "subspaces": inner}


def _write_space(group: Any, name: str, space: SpaceSpec, values: Array) -> None:
    for part in space.leaves():
        leaf = part.space.for_env(np.ascontiguousarray(view(values, space, part)))
        group.create_dataset("/".join([name, *map(_name_of, part.path)]), data=leaf)


def _name_of(key: str | int) -> str:
    return f"_index_{key}" if isinstance(key, int) else key


def read_data_set(path: Path, env: EnvSpec) -> list[Episode]:
    """The episodes of a data set in `path` or `path/data`, in the order of their ids.

    Raises:
        ConfigError: It is missing, damaged, empty or of another format, or it does not fit the spaces of `env`.
    """
    key, value = ("replay", "load"), repr(str(path))
    episodes: list[Episode] = []
    h5py = h5py_of("replay.load")
    data = path if (path / METADATA).exists() else path / DATA
    try:
        metadata = json.loads((data / METADATA).read_text(encoding="utf-8"))
        form, count = metadata.get("data_format", "hdf5"), int(metadata["total_episodes"])
        if form != "hdf5":
            raise ConfigError(f"has the format {form!r}, and only hdf5 is read", key=key, value=value, is_subject=True)
        with h5py.File(data / MAIN, "r") as file:
            for number in range(count):
                try:
                    episodes += _read_episode(file[f"episode_{number}"], env)
                except BadValue as error:
                    what = f"does not fit env.id {env.id}: episode_{number}: {error}"
                    raise ConfigError(what, key=key, value=value, is_subject=True, others=(("env", "id"),)) from error
    except FileNotFoundError as error:
        fix = f"name the folder that has {DATA}/{METADATA} and {DATA}/{MAIN}"
        raise ConfigError(
            f"no data set: {error.filename or data / MAIN} is missing", key=key, value=value, fix=fix
        ) from error
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        what = f"{data} is damaged, or not a data set of Minari: {name_of(error)}: {error}"
        raise ConfigError(what, key=key, value=value) from error
    if not episodes:
        raise ConfigError("has no env step", key=key, value=value, is_subject=True)
    return episodes


def _read_episode(group: Any, env: EnvSpec) -> list[Episode]:
    """The episode; none without an env step."""
    rows = [np.asarray(group[name][()]) for name in ROWS]
    length = len(rows[0])
    if not length:
        return []
    obs = _packed(env.observation, _nested(group["observations"]), "observation", length + 1)
    action = _packed(env.action, _nested(group["actions"]), "action", length)
    for name, values in zip(ROWS, rows, strict=True):
        if values.shape != (length,) or values.dtype.kind not in KINDS or not np.isfinite(values).all():
            raise BadValue(f"{name} {values.dtype} {list(values.shape)} are not {length} finite numbers", name)
    reward, terminated, truncated = (
        values.astype(dtype) for values, dtype in zip(rows, ("float32", "bool", "bool"), strict=True)
    )
    return [Episode(obs, action, reward, terminated, truncated)]


def _packed(space: SpaceSpec, values: Any, part: str, rows: int) -> Array:
    try:
        packed, single = packed_batch(space, values)
    except BadValue as error:
        raise BadValue(f"in {part}s: {error}", part) from error
    if single or len(packed) != rows:
        raise BadValue(f"{len(packed)} {part}s where {rows} are needed", part)
    return packed


def _nested(node: Any) -> Any:
    """A dataset as an array; a group as a mapping, one of `_index_0`, `_index_1`, ... as a tuple."""
    if not hasattr(node, "keys"):
        return np.asarray(node[()])
    if "_index_0" in node:
        return tuple(_nested(node[f"_index_{number}"]) for number in range(len(node)))
    return {name: _nested(node[name]) for name in node}
