"""The rows of a data set as segments, and replay over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from zmqrl.data_sets.episodes import Episode
from zmqrl.random_streams import stream
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import FIXED_COLUMNS, Array, SegmentId, SegmentMeta, SlotRef, SpaceSpec, Version, Weights


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


class LoadedReplay(SegmentReplay):
    """Replay that holds all rows of a data set, and nothing else. It draws apart from the replay of the run."""

    def __init__(
        self,
        columns: Mapping[str, Array],
        seed: int,
        spec: ReplaySpec,
        observation: SpaceSpec | None = None,
        state: Weights | None = None,
        sha256: str = "",
    ) -> None:
        """`columns` of `columns_of`; `state` of an earlier one; `sha256`: what `digest_of` returns for the episodes."""
        valid, own_seed = columns["valid"], int(stream(seed, "loaded").integers(2**32))
        super().__init__(columns, len(valid), own_seed, spec, observation)
        if state:
            self.load_state(state)
        for slot, rows in enumerate(valid.sum((1, 2)).tolist()):
            self.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, 0), rows))
        self.sha256, self.env_steps = sha256, int(valid.sum())


def digest_of(episodes: Iterable[Episode]) -> str:
    """Digest of all values of episodes."""
    digest = hashlib.sha256()
    for episode in episodes:
        for name, array in vars(episode).items():
            digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
