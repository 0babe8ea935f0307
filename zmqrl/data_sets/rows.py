"""The rows of a data set as segments, and replay over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zmqrl.data_sets.episodes import Episode
from zmqrl.data_sets.minari_files import read_data_set
from zmqrl.errors import ConfigError
from zmqrl.random_streams import stream
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import FIXED_COLUMNS, Array, EnvSpec, SegmentId, SegmentMeta, SlotRef, SpaceSpec, Version, Weights


def columns_of(episodes: Iterable[Episode], steps: int, envs: int) -> dict[str, Array]:
    """Episodes one after the other, cut into S segments: columns `[S, T, N, ...]`, `obs [S, T + 1, N, ...]`.

    After each episode is the row that only resets an env, which is not valid, as in the segments of a vector env. The
    last row of an unfinished episode is truncated. The segments of an env slot follow each other, as those of a vector
    env.
    """
    rows: dict[str, list[Array]] = {name: [] for name in FIXED_COLUMNS}
    for episode in episodes:
        length = len(episode.reward)
        rows["obs"].append(episode.obs)
        for name in ("action", "reward", "terminated", "truncated"):
            values = getattr(episode, name)
            rows[name].append(np.concatenate([values, np.zeros_like(values[:1])]))
        rows["truncated"][-1][length - 1] |= not episode.is_finished
        rows["valid"].append(np.arange(length + 1) < length)
    joined = {name: np.concatenate(parts) for name, parts in rows.items()}
    slots = -(-len(joined["valid"]) // (steps * envs))
    return {name: _cut(values, slots, steps, envs, int(name == "obs")) for name, values in joined.items()}


def _cut(values: Array, slots: int, steps: int, envs: int, more: int) -> Array:
    """`[slots, steps + more, envs, ...]`; a segment of `more` rows more has those of the next one. Padded with 0."""
    at = np.arange(slots * envs).reshape(envs, slots).T[:, None] * steps + np.arange(steps + more)[:, None]
    padding = np.zeros((int(at.max()) + 1 - len(values), *values.shape[1:]), values.dtype)
    cut: Array = np.concatenate([values, padding])[at]
    return cut


@dataclass(frozen=True)
class LoadedReplay:
    """Replay that holds all rows of a data set, and nothing else."""

    replay: SegmentReplay
    sha256: str
    """Digest of all values."""
    env_steps: int


def load(path: Path, env: EnvSpec, steps: int, envs: int) -> tuple[dict[str, Array], str]:
    """Columns of a data set, and the digest of its values.

    ConfigError as of `read_data_set`, and when it has no env step.
    """
    episodes = list(read_data_set(path, env))
    if not episodes:
        raise ConfigError("has no env step", key=("replay", "load"), value=repr(str(path)), is_subject=True)
    return columns_of(episodes, steps, envs), _digest(episodes)


def replay_of(
    columns: Mapping[str, Array],
    seed: int,
    spec: ReplaySpec,
    observation: SpaceSpec | None = None,
    state: Weights | None = None,
) -> SegmentReplay:
    """Replay that holds all segments of `columns`; `state`: of an earlier one. It draws apart from that of the run."""
    valid, own_seed = columns["valid"], int(stream(seed, "loaded").integers(2**32))
    replay = SegmentReplay(columns, len(valid), own_seed, spec, observation)
    if state:
        replay.load_state(state)
    for slot, rows in enumerate(valid.sum((1, 2)).tolist()):
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, 0), rows))
    return replay


def _digest(episodes: Iterable[Episode]) -> str:
    digest = hashlib.sha256()
    for episode in episodes:
        for name, array in vars(episode).items():
            digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
